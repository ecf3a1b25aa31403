// Runs the blocks of a launch, one after another, in this thread.
//
// Between two barriers the warps of a block run one after another, in an order that changes; so do the lanes of a warp
// between two of its operations. A program that needs a barrier which it does not have fails sooner or later.
// EMULATED_SEED chooses the orders.
#include "ptx.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <numeric>
#include <sys/mman.h>

namespace ptx {
using std::string;

namespace {

constexpr long MOST_BRANCHES = 1L << 32; // of a block: an endless loop
constexpr size_t PAGE = 4096;

// Shared memory has addresses of 32 bits. Behind it lies a page without access: a block's memory ends there.
char* end_of_shared_memory() {
    static char* end = [] {
        size_t size = (MOST_SHARED_BYTES + PAGE - 1) / PAGE * PAGE;
        char* at = (char*)mmap(nullptr, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        mprotect(at + PAGE, size, PROT_READ | PROT_WRITE);
        return at + PAGE + size;
    }();
    return end;
}

// An access outside of all memory ends the kernel, not the process.
thread_local sigjmp_buf escape;
thread_local void* illegal_address;
void trapped(int, siginfo_t* info, void*) {
    illegal_address = info->si_addr;
    siglongjmp(escape, 1);
}
struct Trap {
    struct sigaction segv, bus;
    Trap() {
        struct sigaction action = {};
        action.sa_sigaction = trapped;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &segv);
        sigaction(SIGBUS, &action, &bus);
    }
    ~Trap() {
        sigaction(SIGSEGV, &segv, nullptr);
        sigaction(SIGBUS, &bus, nullptr);
    }
};

struct Launch {
    Kernel& kernel;
    const unsigned *grid, *block;
    std::vector<uint64_t> presets{}, registers{}; // of one thread at the start, and of all
    std::vector<char> local{};
    std::vector<Thread> threads{};
    std::vector<int> warps{}; // in the order in which they run
    char* shared = nullptr;
    size_t shared_bytes = 0, local_bytes = 0;
    unsigned where[3] = {0, 0, 0}; // the block
    Thread* running = nullptr;
    uint64_t random = 1;
    long branches = 0;

    void run_all();
    void start_block();
    void run_block();
    void run_warp(int first);
    void run_thread(Thread& t);
    bool run_together(int first, int last);
    unsigned below(unsigned n) { // a random number
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return unsigned(random >> 33) % n;
    }
    template <class I> void shuffle(I begin, I end) {
        for (auto n = end - begin; n > 1; n--) std::swap(begin[n - 1], begin[below(unsigned(n))]);
    }
    string place() const {
        string text = " in " + kernel.name + ", block " + std::to_string(where[0]) + " " + std::to_string(where[1]) + " " + std::to_string(where[2]);
        if (running) {
            text += ", thread " + std::to_string(running->index);
            if (size_t(running->pc) < kernel.lines.size()) text += ", at: " + kernel.lines[running->pc];
        }
        return text;
    }
};

void Launch::start_block() {
    memset(shared, 0xff, shared_bytes); // a NaN, whatever the type
    branches = 0;
    for (auto& t : threads) {
        t.pc = t.groups = 0;
        t.state = State::ready;
        t.copies.clear();
        t.lane = t.index % 32;
        t.registers = &registers[size_t(t.index) * kernel.registers];
        memcpy(t.registers, presets.data(), presets.size() * 8);
        for (auto& p : kernel.presets)
            if (p.space == Space::local) t[p.reg] = uint64_t(local.data() + local_bytes * t.index + p.value);
        unsigned i = unsigned(t.index);
        uint64_t special[] = {i % block[0], i / block[0] % block[1], i / block[0] / block[1], block[0], block[1], block[2],
                              where[0], where[1], where[2], grid[0], grid[1], grid[2], uint64_t(t.lane), i / 32, (1u << t.lane) - 1, 0, 0};
        memcpy(t.registers, special, sizeof special);
    }
}

void Launch::run_thread(Thread& t) {
    running = &t;
    const Instruction* code = kernel.code.data();
    while (t.state == State::ready) {
        const Instruction& i = code[t.pc];
        bool runs = i.guard < 0 || (t[i.guard] & 1) != i.guard_is_false;
        if (!runs || i.target < 0) {
            if (runs) i.step(t, i);
            if (t.state != State::at_warp_operation) t.pc++;
        } else {
            i.step(t, i); // a branch
            if (++branches > MOST_BRANCHES) throw Fault(LAUNCH_FAILURE, "an endless loop");
        }
    }
}

// The first operation at which lanes of a warp wait, and all the lanes that its mask names.
bool Launch::run_together(int first, int last) {
    int pc = -1;
    for (int n = first; n < last; n++)
        if (threads[n].state == State::at_warp_operation && (pc < 0 || threads[n].pc < pc)) pc = threads[n].pc;
    if (pc < 0) return false;
    Warp warp = {};
    uint32_t here = 0, alive = 0;
    bool others_wait = false;
    for (int n = first; n < last; n++) {
        Thread& t = threads[n];
        if (t.state != State::done) alive |= 1u << t.lane;
        if (t.state != State::at_warp_operation) continue;
        if (t.pc == pc) warp[t.lane] = running = &t, here |= 1u << t.lane;
        else others_wait = true;
    }
    const Instruction& i = kernel.code[pc];
    uint32_t needed = i.has_mask ? uint32_t((*running)[i.in.back()]) & alive : alive;
    if (needed != here) throw Fault(LAUNCH_FAILURE, others_wait ? "lanes of a warp wait at different operations" : "an operation of a warp without lanes that its mask names");
    i.together(warp, i);
    for (auto* t : warp)
        if (t) t->pc++, t->state = State::ready;
    return true;
}

void Launch::run_warp(int first) {
    int last = std::min(first + 32, int(threads.size())), order[32];
    do {
        std::iota(order, order + (last - first), first);
        shuffle(order, order + (last - first));
        for (int n = 0; n < last - first; n++)
            if (threads[order[n]].state == State::ready) run_thread(threads[order[n]]);
    } while (run_together(first, last));
}

void Launch::run_block() {
    start_block();
    for (bool is_done = false; !is_done;) {
        shuffle(warps.begin(), warps.end());
        for (int first : warps) run_warp(first);
        is_done = true;
        for (auto& t : threads)
            if (t.state == State::at_barrier) t.state = State::ready, is_done = false;
    }
    for (auto& t : threads) t.groups++, finish_copies(t, 0);
}

void Launch::run_all() {
    for (where[2] = 0; where[2] < grid[2]; where[2]++)
        for (where[1] = 0; where[1] < grid[1]; where[1]++)
            for (where[0] = 0; where[0] < grid[0]; where[0]++) run_block();
}

} // namespace

void launch(Kernel& kernel, const unsigned grid[3], const unsigned block[3], unsigned dynamic_bytes, const uint8_t* parameters) {
    size_t count = size_t(block[0]) * block[1] * block[2], dynamic_offset = (kernel.shared_bytes + 15) / 16 * 16;
    size_t shared_bytes = (dynamic_offset + dynamic_bytes + 15) / 16 * 16;
    if (shared_bytes > MOST_SHARED_BYTES) throw Fault(1, "too much shared memory");
    static uint64_t seed = getenv("EMULATED_SEED") ? strtoull(getenv("EMULATED_SEED"), nullptr, 10) : 1;
    // kept until the next launch, because memory that is new costs more than a small kernel
    static thread_local std::vector<uint64_t> registers;
    static thread_local std::vector<char> local;
    static thread_local std::vector<Thread> threads;
    Launch now{kernel, grid, block};
    now.presets.resize(kernel.registers);
    now.registers = std::move(registers), now.local = std::move(local), now.threads = std::move(threads);
    now.shared = end_of_shared_memory() - shared_bytes;
    now.shared_bytes = shared_bytes, now.local_bytes = size_t(kernel.local_bytes + 15) / 16 * 16;
    now.random = (++seed) * 0x9e3779b97f4a7c15;
    now.registers.resize(std::max(now.registers.size(), count * kernel.registers));
    now.local.resize(std::max(now.local.size(), count * now.local_bytes + 16));
    now.threads.resize(count);
    for (size_t i = 0; i < count; i++) now.threads[i].index = int(i);
    for (size_t first = 0; first < count; first += 32) now.warps.push_back(int(first));
    for (auto& p : kernel.presets) {
        uint64_t base = p.space == Space::parameter ? uint64_t(parameters) : p.space == Space::shared ? uint64_t(now.shared)
                        : p.space == Space::dynamic_shared ? uint64_t(now.shared + dynamic_offset) : 0;
        now.presets[p.reg] = base + p.value;
    }
    Trap trap;
    try {
        if (sigsetjmp(escape, 1)) {
            char address[32];
            snprintf(address, sizeof address, "%p", illegal_address);
            throw Fault(ILLEGAL_ADDRESS, string("illegal address ") + address);
        }
        now.run_all();
    } catch (const Fault& fault) {
        throw Fault(fault.code, fault.what() + now.place());
    }
    registers = std::move(now.registers), local = std::move(now.local), threads = std::move(now.threads);
}

} // namespace ptx
