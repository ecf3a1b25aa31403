// Reads PTX: modules, declarations and statements. Calls are replaced by the text of the function that is called; one that
// calls itself, to the depth of `DEEPEST`.
#include "ptx.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <regex>

namespace ptx {
using std::string;
using std::vector;

static const char* const TYPE_NAMES[] = {"",   "b8", "b16", "b32", "b64", "u8",    "u16",  "u32",    "u64", "s8",
                                         "s16", "s32", "s64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "pred"};
static const int SIZES[] = {4, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 2, 4, 4, 8, 1};

Type type_named(const string& name) {
    for (int i = 1; i < 20; i++)
        if (name == TYPE_NAMES[i]) return Type(i);
    return Type::none;
}

int size_of(Type type) { return SIZES[int(type)]; }

bool Words::has(const string& word) const {
    for (auto& x : all)
        if (x == word) return true;
    return false;
}

constexpr int DEEPEST = 3;

static string trim(const string& s) {
    size_t a = s.find_first_not_of(" \t\r\n"), b = s.find_last_not_of(" \t\r\n");
    return a == string::npos ? "" : s.substr(a, b - a + 1);
}

// The parts between separators that are not in brackets.
static vector<string> split(const string& s, char separator) {
    vector<string> parts;
    string part;
    int depth = 0;
    for (char c : s) {
        depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (c == separator && !depth) {
            parts.push_back(trim(part));
            part.clear();
        } else {
            part += c;
        }
    }
    if (!trim(part).empty()) parts.push_back(trim(part));
    return parts;
}

static vector<string> items(const string& s) { // of {a, b}, or the one that s is
    return s[0] == '{' ? split(s.substr(1, s.size() - 2), ',') : vector<string>{s};
}

static bool of_name(char c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.'; }

static int aligned(int offset, int alignment) { return (offset + alignment - 1) / alignment * alignment; }

static string without_comments(const char* text) {
    string out;
    for (const char* p = text; *p;) {
        if (!strncmp(p, "//", 2)) {
            while (*p && *p != '\n') p++;
        } else if (!strncmp(p, "/*", 2)) {
            const char* end = strstr(p + 2, "*/");
            p = end ? end + 2 : p + strlen(p);
        } else {
            out += *p++;
        }
    }
    return out;
}

static int64_t number(const string& s) { // 12, -3, 0x1F, 5U, and the bits of a float: 0f3F800000, 0d...
    if (s.size() > 2 && s[0] == '0' && strchr("fFdD", s[1])) return int64_t(std::stoull(s.substr(2), 0, 16));
    return s[0] == '-' ? std::stoll(s, 0, 0) : int64_t(std::stoull(s, 0, 0));
}

// A declaration of memory: "[.visible] .global .align 4 .b8 name[24] = {1, 2}".
struct Declared {
    string space, name, values;
    int alignment, element, size;
    bool is_sized; // not: the dynamic shared memory
};
static bool declaration(const string& s, Declared& d) {
    static const std::regex form(
        R"(\.(global|const|shared|local|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[\w.\s]*?\s)?([\w$.]+)\s*(\[(\d*)\])?\s*(?:=\s*([\s\S]*))?$)");
    std::smatch m;
    if (!std::regex_search(s, m, form)) return false;
    int size = size_of(type_named(m[3]));
    int count = m[6].length() ? stoi(m[6]) : 1;
    d = {m[1], m[4], m[7], m[2].length() ? stoi(m[2]) : size, size, size * count, m[5] != "[]"};
    return true;
}

static void add_memory(Module& module, const string& text) {
    Declared d;
    if (!declaration(text, d)) return;
    if (d.space == "shared") {
        module.shared[d.name] = d.is_sized ? d.size : 0;
        return;
    }
    char* address = (char*)aligned_alloc(128, aligned(d.size, 128));
    memset(address, 0, aligned(d.size, 128));
    if (!d.values.empty()) {
        auto values = items(trim(d.values));
        for (size_t i = 0; i < values.size(); i++) {
            int64_t value = number(values[i]);
            memcpy(address + i * d.element, &value, d.element);
        }
    }
    module.globals[d.name] = {address, d.size};
}

static void add_kernel(Module& module, const string& head, const string& body) {
    Kernel k;
    size_t begin = head.find_first_not_of(" \t\n", head.find(".entry") + 6), end = begin;
    while (of_name(head[end])) end++;
    k.name = head.substr(begin, end - begin);
    k.text = body;
    size_t open = head.find('(', end);
    if (open != string::npos)
        for (auto& one : split(head.substr(open + 1, head.find(')', open) - open - 1), ',')) {
            Declared d;
            if (!declaration(one, d)) throw Fault(INVALID_PTX, "parameter " + one + " of " + k.name);
            int at = aligned(k.parameter_bytes, d.alignment);
            k.parameters.push_back({d.name, at, d.size});
            k.parameter_bytes = at + d.size;
        }
    module.kernels[k.name] = k;
}

static void add_function(Module& module, const string& head, const string& body) { // ".func (results) name (parameters)"
    static const std::regex form(R"(\.func\s*(\([^)]*\))?\s*([\w$]+)\s*(\([^)]*\))?)"), last(R"(([\w$%]+)\s*(\[\d+\])?$)");
    std::smatch m;
    if (!std::regex_search(head, m, form)) throw Fault(INVALID_PTX, head);
    Function f;
    f.text = body;
    for (int side : {1, 3})
        for (auto& one : split(m[side].length() ? string(m[side]).substr(1, m[side].length() - 2) : "", ',')) {
            std::smatch name;
            std::regex_search(one, name, last);
            (side == 1 ? f.results : f.parameters).push_back(name[1]);
        }
    module.functions[m[2]] = f;
}

Module* load(const char* text) {
    auto* module = new Module;
    string s = without_comments(text), head;
    for (size_t i = 0; i < s.size(); i++) {
        bool is_body = s[i] == '{' && (head.find(".entry") != string::npos || head.find(".func") != string::npos);
        if (is_body) {
            int depth = 1;
            size_t end = i + 1;
            for (; depth && end < s.size(); end++) depth += (s[end] == '{') - (s[end] == '}');
            string body = s.substr(i + 1, end - i - 2);
            (head.find(".entry") != string::npos ? add_kernel : add_function)(*module, head, body);
            i = end - 1;
            head.clear();
        } else if (s[i] == ';') { // the lines of .version and .target have none
            size_t at = string::npos;
            for (const char* space : {".global", ".const", ".shared"}) at = std::min(at, head.rfind(space));
            if (at != string::npos) add_memory(*module, head.substr(at));
            head.clear();
        } else {
            head += s[i];
        }
    }
    return module;
}

namespace {

// Makes the instructions of a kernel of its text.
class Assembler {
  public:
    Assembler(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {
        scopes_.emplace_back();
        for (auto* name : SPECIAL) special_[name] = kernel_.registers++;
    }

    void assemble() {
        block(kernel_.text, "", 0);
        Words end{"exit", {"exit"}, {}};
        add(end, {}, Instruction(), "exit");
        for (auto& [at, label] : jumps_) {
            auto found = labels_.find(label);
            if (found == labels_.end()) throw Fault(INVALID_PTX, "label " + label + " in " + kernel_.name);
            kernel_.code[at].target = found->second;
        }
    }

  private:
    struct Slot { // memory of a name in a body
        Space space;
        int offset;
    };
    struct Scope { // between braces, or of a call, whose names are its own
        std::map<string, int> registers;
        std::map<string, Slot> slots;
        bool is_call = false;
    };

    template <class T> T* find(std::map<string, T> Scope::*names, const string& name) {
        for (size_t i = scopes_.size(); i--;) {
            auto found = (scopes_[i].*names).find(name);
            if (found != (scopes_[i].*names).end()) return &found->second;
            if (scopes_[i].is_call) break;
        }
        return nullptr;
    }

    bool is_register(const string& name) {
        return name[0] == '%' || find(&Scope::registers, name) || special_.count(name);
    }

    int reg(const string& name) {
        if (name == "_") return -1;
        if (auto* known = find(&Scope::registers, name)) return *known;
        if (special_.count(name)) return special_[name];
        if (name[0] != '%') throw Fault(INVALID_PTX, "register " + name);
        size_t i = scopes_.size() - 1; // of a group: .reg .b32 %r<5>
        while (i && !scopes_[i].is_call) i--;
        return scopes_[i].registers[name] = kernel_.registers++;
    }

    bool is_predicate(const string& name) {
        return predicates_.count(name) || predicates_.count(name.substr(0, name.find_last_not_of("0123456789") + 1));
    }

    int preset(Space space, int64_t value) {
        auto [found, is_new] = presets_.try_emplace({space, value}, kernel_.registers);
        if (is_new) kernel_.presets.push_back({kernel_.registers++, space, value});
        return found->second;
    }

    int symbol(const string& name, int offset) {
        if (auto* slot = find(&Scope::slots, name)) return preset(slot->space, slot->offset + offset);
        for (auto& p : kernel_.parameters)
            if (p.name == name) return preset(Space::parameter, p.offset + offset);
        if (module_.shared.count(name)) {
            int size = module_.shared[name];
            if (!size) return preset(Space::dynamic_shared, offset);
            if (!shared_.count(name)) {
                shared_[name] = aligned(kernel_.shared_bytes, 16);
                kernel_.shared_bytes = shared_[name] + size;
            }
            return preset(Space::shared, shared_[name] + offset);
        }
        if (module_.globals.count(name)) return preset(Space::constant, int64_t(module_.globals[name].address) + offset);
        throw Fault(INVALID_PTX, "symbol " + name);
    }

    int value(const string& s) {
        if (s == "_" || is_register(s)) return reg(s);
        if (isdigit(s[0]) || s[0] == '-') return preset(Space::constant, number(s));
        size_t plus = s.find('+');
        return symbol(trim(s.substr(0, plus)), plus == string::npos ? 0 : stoi(s.substr(plus + 1)));
    }

    void address(Instruction& i, const string& s, int nth) { // [register+offset] or [symbol+offset]
        string inner = trim(s.substr(1, s.size() - 2));
        size_t plus = inner.find('+');
        string base = trim(inner.substr(0, plus));
        if (is_register(base)) {
            i.in.push_back(reg(base));
            i.offset[nth] = plus == string::npos ? 0 : stoll(inner.substr(plus + 1));
        } else {
            i.in.push_back(value(inner));
        }
    }

    void block(const string& text, const string& tag, int depth) {
        for (auto& one : split_statements(text)) {
            string s = trim(one);
            for (;;) { // braces and labels before the statement
                size_t n = 0;
                while (n < s.size() && of_name(s[n])) n++;
                if (!s.empty() && s[0] == '{') {
                    scopes_.emplace_back();
                    s = trim(s.substr(1));
                } else if (!s.empty() && s[0] == '}') {
                    if (!scopes_.back().is_call) scopes_.pop_back();
                    s = trim(s.substr(1));
                } else if (n && n < s.size() && s[n] == ':' && s[n + 1] != ':') {
                    labels_[tag + s.substr(0, n)] = int(kernel_.code.size());
                    s = trim(s.substr(n + 1));
                } else {
                    break;
                }
            }
            if (s.empty()) continue;
            try {
                s[0] == '.' ? declare(s) : statement(s, tag, depth);
            } catch (const std::exception& error) {
                throw Fault(INVALID_PTX, kernel_.name + ": " + s + ": " + error.what());
            }
        }
    }

    static vector<string> split_statements(const string& text) {
        vector<string> all{""};
        for (char c : text)
            if (c == ';') all.emplace_back();
            else all.back() += c;
        return all;
    }

    void declare(const string& s) {
        Declared d;
        if (!s.compare(0, 4, ".reg")) {
            for (auto& name : split(trim(s.substr(s.find_first_of(" \t", s.find_first_not_of(" \t", 4)))), ',')) {
                size_t group = name.find('<'); // %r<5> declares %r0 to %r4
                if (s.find(".pred") < s.find(name)) predicates_.insert(name.substr(0, group));
                if (group == string::npos) scopes_.back().registers[name] = kernel_.registers++;
            }
        } else if (declaration(s, d)) {
            bool is_shared = d.space == "shared";
            int& total = is_shared ? kernel_.shared_bytes : kernel_.local_bytes;
            int at = aligned(total, d.alignment);
            scopes_.back().slots[d.name] = {is_shared ? Space::shared : Space::local, at};
            total = at + d.size;
        }
    }

    void statement(string s, const string& tag, int depth) {
        string line = s;
        Instruction made;
        if (s[0] == '@') {
            size_t end = s.find_first_of(" \t\n");
            made.guard_is_false = s[1] == '!';
            made.guard = reg(s.substr(1 + made.guard_is_false, end - 1 - made.guard_is_false));
            s = trim(s.substr(end));
        }
        size_t end = s.find_first_of(" \t\n");
        Words words;
        words.name = s.substr(0, end);
        words.all = split(words.name, '.');
        for (size_t i = 1; i < words.all.size(); i++)
            if (Type type = type_named(words.all[i]); type != Type::none) words.types.push_back(type);
        auto operands = split(end == string::npos ? "" : s.substr(end), ',');
        string first = words.all[0];
        if (first == "call")
            call(operands, made, line, depth);
        else if (first == "bra" || (first == "ret" && depth)) { // the end of a copied function is a label
            jumps_.push_back({int(kernel_.code.size()), tag + (first == "ret" ? "#end" : operands[0])});
            add({"bra", {"bra"}, {}}, {}, made, line);
        } else {
            add(words, operands, made, line);
        }
    }

    void add(const Words& words, const vector<string>& operands, Instruction made, const string& line) {
        const Row* row = row_of(words);
        if (!row) throw std::runtime_error("the table of instructions has no " + words.name);
        auto has_word = [&](const string& w) { return (" " + string(row->modifiers) + " ").find(" " + w + " ") != string::npos; };
        for (size_t i = 1; i < words.all.size(); i++) {
            auto& w = words.all[i];
            if (type_named(w) == Type::none && !has_word(w) && string(row->name) != words.all[0] + "." + w)
                throw std::runtime_error("the table of instructions has no " + w + " for " + row->name);
        }
        if (!words.types.empty()) made.type = words.types[0];
        if (words.types.size() > 1) made.from = words.types[1];
        size_t n = 0;
        int addresses = 0;
        bool is_optional = false;
        for (const char* c = row->operands; *c; c++) {
            if (*c == '~') {
                is_optional = true;
                continue;
            }
            if (n == operands.size() && is_optional) break;
            if (n == operands.size()) throw std::runtime_error("too few operands");
            string s = operands[n++];
            if (*c == 'd') {
                size_t bar = s.find('|');
                for (auto& x : items(trim(s.substr(0, bar)))) made.out.push_back(reg(x));
                if (bar != string::npos) made.out.push_back(reg(trim(s.substr(bar + 1))));
            } else if (*c == 'm') {
                address(made, s, addresses++);
            } else {
                if (*c == 'p' && s[0] == '!') {
                    made.negated = true;
                    s = trim(s.substr(1));
                }
                for (auto& x : items(s)) made.in.push_back(value(x));
                made.last_is_predicate = is_predicate(s);
            }
        }
        if (n < operands.size()) throw std::runtime_error("too many operands");
        made.flush = words.has("ftz");
        made.saturate = words.has("sat");
        row->make(made, words);
        kernel_.code.push_back(made);
        kernel_.lines.push_back(line);
    }

    // call (result), name, (arguments): results and arguments are memory of the caller.
    void call(vector<string> operands, Instruction guard, const string& line, int depth) {
        auto listed = [&](size_t at) {
            return at < operands.size() && operands[at][0] == '(' ? split(operands[at].substr(1, operands[at].size() - 2), ',') : vector<string>();
        };
        auto results = listed(0);
        size_t at = operands[0][0] == '(';
        string name = operands[at];
        auto arguments = listed(at + 1);
        auto found = module_.functions.find(name);
        if (found == module_.functions.end() || operands.size() > at + 2) throw std::runtime_error("a call of a pointer, or of no function");
        const Function& f = found->second;
        if (f.results.size() != results.size() || f.parameters.size() != arguments.size()) throw std::runtime_error("arguments");
        if (std::count(called_.begin(), called_.end(), name) >= DEEPEST) return add({"trap", {"trap"}, {}}, {}, guard, line);
        called_.push_back(name);
        string tag = "@" + std::to_string(calls_++) + "/";
        if (guard.guard >= 0) {
            guard.guard_is_false = !guard.guard_is_false;
            jumps_.push_back({int(kernel_.code.size()), tag + "#end"});
            add({"bra", {"bra"}, {}}, {}, guard, line);
        }
        Scope scope;
        scope.is_call = true;
        auto pass = [&](const vector<string>& inner, const vector<string>& outer) {
            for (size_t i = 0; i < inner.size(); i++) {
                auto* slot = find(&Scope::slots, outer[i]);
                if (!slot) throw std::runtime_error("argument " + outer[i]);
                scope.slots[inner[i]] = *slot;
            }
        };
        pass(f.results, results);
        pass(f.parameters, arguments);
        size_t before = scopes_.size();
        scopes_.push_back(scope);
        block(f.text, tag, depth + 1);
        scopes_.resize(before);
        called_.pop_back();
        labels_[tag + "#end"] = int(kernel_.code.size());
    }

    Module& module_;
    Kernel& kernel_;
    vector<Scope> scopes_;
    std::map<string, int> special_, labels_, shared_;
    std::map<std::pair<Space, int64_t>, int> presets_;
    std::set<string> predicates_; // of registers, or of groups of them
    vector<std::pair<int, string>> jumps_;
    vector<string> called_;
    int calls_ = 0;
};

} // namespace

void parse(Module& module, Kernel& kernel) {
    if (kernel.is_parsed) return;
    Kernel made = kernel;
    Assembler(module, made).assemble();
    made.is_parsed = true;
    kernel = std::move(made);
}

} // namespace ptx
