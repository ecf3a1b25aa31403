// Rows of a matrix: how the threads of a block share them, and how they are read and written.
//
// A block has blockDim.y rows, and blockDim.x threads for each: a power of two up to 32, or a multiple of 32. So narrow
// rows need no barrier, and several share a warp.
//
// Memory delivers its bandwidth only to accesses of 16 bytes at addresses that are multiples of 16, and only while some
// 40 KiB per multiprocessor are under way. So a row is divided into packs of 16 bytes at such addresses, whatever the
// width: the first and the last pack may reach beyond the row, and only there elements are accessed one by one. Rows that
// are needed twice are copied to shared memory, without a detour through registers: the copies of all packs of a row
// are under way together, and the number of threads does not depend on the width. Each thread reads the packs that it
// has copied itself, so that no barrier is needed between the copy and the use.

// -- copies to shared memory -------------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_COPIES
#endif

// Starts a copy of 16 bytes from global to shared memory.
__device__ __forceinline__ void start_copy(void *to, const void *from) {
#if defined(ON_CPU)
    on_cpu::copy_async(to, from, 16, false);
#elif defined(HAS_COPIES)
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    *reinterpret_cast<Pack<unsigned, 4> *>(to) = *reinterpret_cast<const Pack<unsigned, 4> *>(from);
#endif
}

// Ends a group of copies, for `wait_for_copies`.
__device__ __forceinline__ void end_group() {
#if defined(ON_CPU)
    on_cpu::end_group();
#elif defined(HAS_COPIES)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all copies of this thread are complete, but for those of the last `groups` groups.
template <int groups> __device__ __forceinline__ void wait_for_copies() {
#if defined(ON_CPU)
    on_cpu::wait_for_copies(groups);
#elif defined(HAS_COPIES)
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

// -- numbers without a conversion ----------------------------------------------------------------------------------------

template <typename T> __device__ __forceinline__ T infinity() { return (T)__uint_as_float(0x7f800000u); }

// Minus infinity as an array's element.
template <typename T> __device__ __forceinline__ T lowest() { return -infinity<T>(); }
template <> __device__ __forceinline__ Half lowest() { return {0xfc00}; }
template <> __device__ __forceinline__ BFloat16 lowest() { return {0xff80}; }

// -- a row ------------------------------------------------------------------------------------------------------------

template <typename T> struct Row {
    static constexpr int N = 16 / sizeof(T);
    typedef Pack<T, N> Packed;

    int width, before, packs;  // `before`: the elements between the address of the first pack and that of the row

    // The packs are at multiples of 16 bytes in the array of `x`, the first element of the row.
    __device__ __forceinline__ Row(const T *x, int width)
        : width(width), before((int)((unsigned long long)x % 16 / sizeof(T))), packs((before + width + N - 1) / N) {}

    // The packs are at multiples of N elements.
    __device__ __forceinline__ explicit Row(int width) : width(width), before(0), packs((width + N - 1) / N) {}

    // Whether the packs are at multiples of 16 bytes in another array too, whose element for the row's first is at x.
    __device__ __forceinline__ bool fits(const T *x) const {
        return ((unsigned long long)x / sizeof(T) - before) % N == 0;
    }

    __device__ __forceinline__ bool is_whole(int pack) const {
        return pack * N >= before && (pack + 1) * N <= before + width;
    }

    __device__ __forceinline__ bool has(int pack, int i) const {
        return (unsigned)(pack * N + i - before) < (unsigned)width;
    }

    // A pack, with a number for the elements outside the row. It is one of the array's type: a conversion of a constant
    // would be an instruction for each element, which the compiler cannot leave out.
    __device__ __forceinline__ Packed read(const T *x, bool is_fit, int pack, T outside) const {
        const T *at = x + (pack * N - before);
        if (is_fit && is_whole(pack)) return *reinterpret_cast<const Packed *>(at);
        Packed found;
        for (int i = 0; i < N; i++) found.at[i] = has(pack, i) ? at[i] : outside;
        return found;
    }

    __device__ __forceinline__ void write(T *y, bool is_fit, int pack, const Packed &given) const {
        T *at = y + (pack * N - before);
        if (is_fit && is_whole(pack)) {
            *reinterpret_cast<Packed *>(at) = given;
            return;
        }
        for (int i = 0; i < N; i++)
            if (has(pack, i)) at[i] = given.at[i];
    }

    // `read` to shared memory. The pack can be used after `wait_for_copies`.
    __device__ __forceinline__ void fetch(Packed *to, const T *x, bool is_fit, int pack, T outside) const {
        if (is_fit && is_whole(pack)) start_copy(to, x + (pack * N - before));
        else *to = read(x, false, pack, outside);
    }

    // The first `held` packs, in shared memory: each thread fetches those that it uses.
    __device__ __forceinline__ void hold(Packed *held, int most, const T *x, bool is_fit, T outside) const {
        for (int p = threadIdx.x; p < packs && p < most; p += blockDim.x) fetch(held + p, x, is_fit, p, outside);
    }
};

// Calls use(pack, its number) for the packs of this thread, in order. U packs are read together.
template <int U, typename T, typename F>
__device__ __forceinline__ void each_pack(const Row<T> &row, const T *x, T outside, F use) {
    typedef typename Row<T>::Packed Packed;
    int step = blockDim.x, first = row.before ? 1 : 0, end = (row.before + row.width) / Row<T>::N;
    for (int p = threadIdx.x; p < row.packs;) {
        if (p >= first && p + (U - 1) * step < end) {
            Packed found[U];
#pragma unroll
            for (int u = 0; u < U; u++) found[u] = *reinterpret_cast<const Packed *>(x + ((p + u * step) * Row<T>::N - row.before));
#pragma unroll
            for (int u = 0; u < U; u++) use(found[u], p + u * step);
            p += U * step;
        } else {
            Packed found = row.read(x, true, p, outside);
            use(found, p);
            p += step;
        }
    }
}

// -- sums and maxima over a row ---------------------------------------------------------------------------------------

// All threads of a row get the results, which are bitwise the same. `scratch` has n * 32 elements, and can be used again
// after the next barrier. All threads of the block take part.
template <int n, typename T, typename F> __device__ __forceinline__ void over_row(T (&x)[n], T *scratch, F combine) {
    int threads = blockDim.x, warps = threads / 32;
    for (int step = min(threads, 32) / 2; step > 0; step /= 2)
        for (int i = 0; i < n; i++) x[i] = combine(x[i], __shfl_xor_sync(0xffffffffu, x[i], step, 32));
    if (warps <= 1) return;
    scratch += threadIdx.y * warps * n;
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < n; i++) scratch[threadIdx.x / 32 * n + i] = x[i];
    __syncthreads();
    for (int i = 0; i < n; i++) {
        x[i] = scratch[i];
        for (int warp = 1; warp < warps; warp++) x[i] = combine(x[i], scratch[warp * n + i]);
    }
}

template <typename T, typename F> __device__ __forceinline__ T over_row(T x, T *scratch, F combine) {
    T values[1] = {x};
    over_row(values, scratch, combine);
    return values[0];
}

// The threads of a block in order, those of a row together.
__device__ __forceinline__ int thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
