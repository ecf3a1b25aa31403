// CUDA's blocks, threads, shared memory, barriers and shuffles on the CPU, so that kernels run in tests without a GPU.
//
// The threads of a block are coroutines of one thread of the CPU: each runs until it waits at a barrier. Blocks run one
// after another. A barrier that not all threads reach is an error, not a hang. So is what a GPU punishes or returns wrong
// numbers for: undefined behaviour, which the compiler makes a trap, and an access outside the arrays, whose neighbours
// are pages without access (on_cpu.py).
#define ON_CPU
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

static dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace on_cpu {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr int MOST_THREADS = 1024, WARP = 32;

enum State { RUNS, WAITS_FOR_BLOCK, WAITS_FOR_WARP, IS_DONE };

struct Copy {
    void *to;
    const void *from;
    int size;
    bool is_zero;
    int group;
};

struct Thread {
    State state;
    bool has_started;
    jmp_buf at;
    ucontext_t context;
    dim3 index;
    uint64_t posted;  // the value that other lanes of the warp read
    std::vector<Copy> copies;
    int group;  // how many groups of copies have ended
};

static Thread threads[MOST_THREADS];
static unsigned char *stacks;
static jmp_buf scheduler;
static int running, count;
static unsigned char *dynamic_shared;
static std::vector<unsigned char> shared_memory;
static const char *problem;
static void (*body)(void **);
static void **arguments;

inline void wait(State why) {
    threads[running].state = why;
    if (_setjmp(threads[running].at) == 0) _longjmp(scheduler, 1);
}

// A thread runs the kernels of all blocks, one after another: to make a context takes longer than a small kernel.
inline void enter() {
    while (true) {
        body(arguments);
        wait(IS_DONE);
    }
}

// Releases the threads of a range if none of them still runs and all that are not done wait for the same.
inline bool release(int first, int last, State why) {
    int waiting = 0, done = 0;
    for (int i = first; i < last; i++) {
        waiting += threads[i].state == why;
        done += threads[i].state == IS_DONE;
    }
    if (waiting == 0 || waiting + done < last - first) return false;
    for (int i = first; i < last; i++)
        if (threads[i].state == why) threads[i].state = RUNS;
    return true;
}

// Runs a thread until it waits or is done.
__attribute__((noinline)) static void resume(int i) {
    Thread &t = threads[i];
    running = i;
    threadIdx = t.index;
    if (_setjmp(scheduler) != 0) return;
    if (t.has_started) _longjmp(t.at, 1);
    t.has_started = true;
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = stacks + STACK_BYTES * i;
    t.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&t.context, enter, 0);
    setcontext(&t.context);
}

// Each warp runs as far as it can before the next one does, so that a missing barrier of the block is seen.
inline void run_block() {
    std::fill(shared_memory.begin(), shared_memory.end(), 0xff);  // NaN: what nobody wrote is seen
    for (int i = 0; i < count; i++) {
        Thread &t = threads[i];
        t.state = RUNS;
        t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        t.copies.clear();
        t.group = 0;
    }
    do {
        for (int warp = 0; warp < count; warp += WARP) {
            int end = std::min(warp + WARP, count);
            do {
                for (int i = warp; i < end; i++)
                    if (threads[i].state == RUNS) resume(i);
            } while (release(warp, end, WAITS_FOR_WARP));
        }
    } while (release(0, count, WAITS_FOR_BLOCK));
    for (int i = 0; i < count; i++)
        if (threads[i].state != IS_DONE) problem = "threads of a block wait at different barriers";
    if (problem)
        for (Thread &t : threads) t.has_started = false;
}

// Lets the first lane of a warp do the work of all: it gets the address that each lane posted.
inline void together(void *mine, void (*work)(void **lanes)) {
    int me = running, lane = me % WARP;
    threads[me].posted = (uint64_t)mine;
    wait(WAITS_FOR_WARP);
    if (lane == 0) {
        void *lanes[WARP];
        for (int i = 0; i < WARP; i++) lanes[i] = (void *)threads[me + i].posted;
        work(lanes);
    }
    wait(WAITS_FOR_WARP);
}

// A copy to shared memory that is complete when the thread waits for it. Until then the target holds NaN, so that
// reading too early and writing while others still read are seen.
inline void copy_async(void *to, const void *from, int size, bool is_zero) {
    if ((uintptr_t)to % size || (uintptr_t)from % size) problem = "an asynchronous copy between unaligned addresses";
    memset(to, 0xff, size);
    threads[running].copies.push_back({to, from, size, is_zero, threads[running].group});
}

inline void end_group() { threads[running].group++; }

// Completes the copies of all groups that have ended, but for the last ones.
inline void wait_for_copies(int groups) {
    Thread &t = threads[running];
    size_t kept = 0;
    for (const Copy &c : t.copies) {
        if (c.group >= t.group - groups) t.copies[kept++] = c;
        else if (c.is_zero) memset(c.to, 0, c.size);
        else memcpy(c.to, c.from, c.size);
    }
    t.copies.resize(kept);
}

// Completes all copies, as a wait for all of them, or an end of the only group and a wait for it.
inline void wait_for_copies() {
    end_group();
    wait_for_copies(0);
}

static sigjmp_buf trapped;

inline void trap(int number) { siglongjmp(trapped, number); }

// Runs all blocks after the first `skip`. A signal of the compiler's traps or of a page without access ends the kernel.
inline const char *guarded(const unsigned *grid, uint64_t skip) {
    const int numbers[] = {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before[5], action = {};
    action.sa_handler = trap;
    action.sa_flags = SA_NODEFER;
    for (int i = 0; i < 5; i++) sigaction(numbers[i], &action, &before[i]);
    int number = sigsetjmp(trapped, 1);
    if (number == 0) {
        for (unsigned z = 0; z < grid[2] && !problem; z++)
            for (unsigned y = 0; y < grid[1] && !problem; y++)
                for (unsigned x = 0; x < grid[0] && !problem; x++) {
                    if (skip > 0) {
                        skip--;
                        continue;
                    }
                    blockIdx = {x, y, z};
                    run_block();
                }
    } else {
        problem = number == SIGSEGV || number == SIGBUS
                      ? "an access outside the arrays"
                      : "undefined behaviour, such as a pack at an address that is no multiple of its size";
        for (Thread &t : threads) t.has_started = false;
    }
    for (int i = 0; i < 5; i++) sigaction(numbers[i], &before[i], nullptr);
    return problem;
}

inline const char *run(void (*kernel)(void **), void **given, const unsigned *grid, const unsigned *block, size_t bytes,
                       uint64_t skip) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    count = block[0] * block[1] * block[2];
    if (count < 1 || count > MOST_THREADS) return "a block has 1 to 1024 threads";
    if (bytes > 227u << 10) return "a block has at most 227 KiB of shared memory";
    if (!stacks) stacks = (unsigned char *)malloc(STACK_BYTES * MOST_THREADS);  // the system provides what is used
    shared_memory.resize(bytes + 16);
    dynamic_shared = shared_memory.data() + (16 - (uintptr_t)shared_memory.data() % 16) % 16;
    body = kernel, arguments = given, problem = nullptr;
    return guarded(grid, skip);
}

template <auto kernel> struct Entry;

template <typename... A, void (*kernel)(A...)> struct Entry<kernel> {
    template <size_t... i> static void call(void **given, std::index_sequence<i...>) { kernel(*(A *)given[i]...); }
    static void run(void **given) { call(given, std::index_sequence_for<A...>{}); }
    static constexpr int parameters = sizeof...(A);
    static int size(int i) {
        const int sizes[] = {(int)sizeof(A)...};
        return i < parameters ? sizes[i] : -1;
    }
};

}  // namespace on_cpu

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __restrict__ __restrict
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

inline void __syncthreads() { on_cpu::wait(on_cpu::WAITS_FOR_BLOCK); }
inline void __syncwarp(unsigned = 0xffffffffu) { on_cpu::wait(on_cpu::WAITS_FOR_WARP); }
inline void __threadfence() {}

// Each lane posts a value and reads that of another lane. A lane beyond the warp or the width reads its own.
template <typename T> T exchange(T x, int from, int width) {
    static_assert(sizeof(T) <= 8);
    using namespace on_cpu;
    int me = running, lane = me % WARP, base = me - lane, segment = lane / width * width;
    uint64_t posted = 0;
    memcpy(&posted, &x, sizeof(T));
    threads[me].posted = posted;
    wait(WAITS_FOR_WARP);
    bool is_inside = from >= segment && from < segment + width && base + from < count;
    uint64_t received = threads[is_inside ? base + from : me].posted;
    wait(WAITS_FOR_WARP);
    T y;
    memcpy(&y, &received, sizeof(T));
    return y;
}

template <typename T> T __shfl_sync(unsigned, T x, int lane, int width = 32) {
    int mine = on_cpu::running % 32;
    return exchange(x, mine / width * width + lane % width, width);
}
template <typename T> T __shfl_xor_sync(unsigned, T x, int mask, int width = 32) {
    return exchange(x, (on_cpu::running % 32) ^ mask, width);
}
template <typename T> T __shfl_down_sync(unsigned, T x, unsigned by, int width = 32) {
    return exchange(x, on_cpu::running % 32 + (int)by, width);
}
template <typename T> T __shfl_up_sync(unsigned, T x, unsigned by, int width = 32) {
    return exchange(x, on_cpu::running % 32 - (int)by, width);
}
inline unsigned __ballot_sync(unsigned, bool x) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (unsigned)__shfl_sync(0xffffffffu, (int)x, lane) << lane;
    return bits;
}

template <typename T> T atomicAdd(T *at, T x) {
    T before = *at;
    *at = before + x;
    return before;
}
template <typename T> T atomicMax(T *at, T x) {
    T before = *at;
    *at = std::max(before, x);
    return before;
}

using std::max;
using std::min;
using std::isfinite;
using std::isnan;
using std::isinf;
template <typename T> T __ldg(const T *at) { return *at; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned __int128)x * y >> 64;
}
// rounded once: programs are built with -ffp-contract=off
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }

template <typename To, typename From> To same_bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
inline unsigned short double_to_half(double x) { return same_bits<unsigned short>((_Float16)x); }
inline float half_to_float(unsigned short x) { return (float)same_bits<_Float16>(x); }
inline unsigned short float_to_half(float x) { return same_bits<unsigned short>((_Float16)x); }
