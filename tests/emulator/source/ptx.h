// PTX, the assembly language that NVRTC makes of CUDA C++: modules, kernels, instructions and the threads that run them.
//
// parse.cpp reads text, instructions.cpp has the table of instructions, run.cpp runs the blocks of a launch.
// Reference: NVIDIA, "Parallel Thread Execution ISA", version 8.8.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

enum class Type : uint8_t {
    none, b8, b16, b32, b64, u8, u16, u32, u64, s8, s16, s32, s64, f16, f16x2, bf16, bf16x2, f32, f64, pred
};
Type type_named(const std::string& name); // Type::none if there is none
int size_of(Type type);                   // in bytes

// An error of a kernel, with the number that CUDA gives it.
struct Fault : std::runtime_error {
    int code;
    Fault(int code, const std::string& text) : std::runtime_error(text), code(code) {}
};
enum { INVALID_PTX = 218, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILURE = 719 };

// A copy of cp.async. It is made when its thread waits for it, the latest time at which the hardware makes it.
struct Copy {
    char* to;
    const char* from;
    int size, given; // the rest is filled with zeros
    int group;
};

enum class State : uint8_t { ready, at_barrier, at_warp_operation, done };

struct Thread {
    uint64_t* registers = nullptr; // a register of any type takes 64 bits
    int pc = 0, index = 0, lane = 0;
    State state = State::ready;
    int groups = 0; // of cp.async that were committed
    std::vector<Copy> copies;
    uint64_t& operator[](int i) { return registers[i]; }
};
using Warp = std::array<Thread*, 32>; // the lanes of an operation; nullptr is a lane that does not take part

struct Instruction;
using Step = void (*)(Thread&, const Instruction&);             // of one thread
using Together = void (*)(const Warp&, const Instruction&);     // of the lanes of a warp

struct Instruction {
    Step step = nullptr;
    Together together = nullptr;
    int guard = -1; // a predicate: the instruction runs where it is true, or false
    bool guard_is_false = false;
    Type type = Type::none, from = Type::none; // the first and second type among its words
    std::vector<int> out, in;                  // registers; -1 is the operand `_`
    int64_t offset[2] = {0, 0};                // of its addresses, in order
    int target = -1;                           // of a branch
    int mode = 0;                              // among the variants of the instruction
    int rounding = 0;                          // of fesetround; 0 is to nearest
    bool flush = false, saturate = false, negated = false;
    bool last_is_predicate = false;
    bool has_mask = false; // its last operand tells which lanes take part
};

enum class Space : uint8_t { constant, parameter, shared, dynamic_shared, local };

// A register that has a number, or an address, before the first instruction.
struct Preset {
    int reg;
    Space space;
    int64_t value;
};

struct Parameter {
    std::string name;
    int offset, size;
};

struct Kernel {
    std::string name, text;
    std::vector<Parameter> parameters;
    int parameter_bytes = 0, shared_bytes = 0, local_bytes = 0, registers = 0;
    int most_dynamic_bytes = 48 << 10; // cuFuncSetAttribute raises it
    std::vector<Instruction> code;
    std::vector<std::string> lines; // the text of each instruction
    std::vector<Preset> presets;
    bool is_parsed = false;
};

struct Function { // is copied to where it is called
    std::vector<std::string> results, parameters;
    std::string text;
};

struct Global {
    char* address;
    int size;
};

struct Module {
    std::map<std::string, Kernel> kernels;
    std::map<std::string, Function> functions;
    std::map<std::string, Global> globals;
    std::map<std::string, int> shared; // of the module; 0 bytes: the dynamic shared memory of a launch
};

constexpr int MOST_SHARED_BYTES = 227 << 10;
// Registers that every kernel has, in this order.
inline const char* const SPECIAL[] = {
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
    "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%lanemask_lt", "%clock64", "%carry",
};
constexpr int CARRY = 16;

Module* load(const char* text);
void parse(Module& module, Kernel& kernel); // at its first use

// How an instruction is read: an operand for each letter, the optional ones after `~`. d: written, a: read, both of them
// one register or {several}; p: a predicate, or its negation; m: [address]; l: a label.
struct Words {
    std::string name;             // all of them, as in "add.f32"
    std::vector<std::string> all; // the name, then modifiers and types
    std::vector<Type> types;
    bool has(const std::string& word) const;
};
struct Row {
    const char* name;      // the first word, or the first and another one
    const char* modifiers; // the words that it may have besides; a word that is not listed is refused
    const char* operands;
    void (*make)(Instruction&, const Words&);
};
const Row* row_of(const Words& words); // nullptr if the table has none

void finish_copies(Thread& thread, int groups_left);
void launch(Kernel& kernel, const unsigned grid[3], const unsigned block[3], unsigned dynamic_bytes,
            const uint8_t* parameters);

} // namespace ptx
