// Elements of contiguous arrays, one by one: how threads share them.
//
// A thread reads 64 bytes of each array, in accesses of 16, before it uses them: with 16 bytes alone 32 KiB per
// multiprocessor would be under way, which is too little. Arrays at other addresses than multiples of 16 are read element
// by element, and so are the last elements.

// N elements, in accesses of at most 16 bytes.
template <typename T, int N> struct Chunk {
    static constexpr int EACH = N * sizeof(T) > 16 ? 16 / sizeof(T) : N, COUNT = N / EACH;
    Pack<T, EACH> packs[COUNT];

    __device__ __forceinline__ void read(const T *x) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) packs[i] = reinterpret_cast<const Pack<T, EACH> *>(x)[i];
    }

    __device__ __forceinline__ T at(int i) const { return packs[i / EACH].at[i % EACH]; }
};

template <typename T, int N> __device__ __forceinline__ void write_chunk(T *y, const Wide<T> (&values)[N]) {
    typedef Chunk<T, N> Of;
#pragma unroll
    for (int i = 0; i < Of::COUNT; i++) {
        Wide<T> own[Of::EACH];
#pragma unroll
        for (int k = 0; k < Of::EACH; k++) own[k] = values[i * Of::EACH + k];
        reinterpret_cast<Pack<T, Of::EACH> *>(y)[i] = narrow_all<T>(own);
    }
}

// y = f(x, other), of `size` elements; `others` may be null, and then f gets 0. X and Y may differ. y may be x.
template <typename X, typename Y, typename F>
__device__ __forceinline__ void map_elements(const X *xs, const X *others, Y *ys, Index size, F f) {
    constexpr int LEAST = sizeof(X) < sizeof(Y) ? sizeof(X) : sizeof(Y), MOST = sizeof(X) + sizeof(Y) - LEAST;
    constexpr int N = 16 / LEAST, U = 64 / (N * MOST);
    bool is_aligned = ((unsigned long long)xs | (unsigned long long)others | (unsigned long long)ys) % 16 == 0;
    Index chunks = is_aligned ? size / N : 0, step = blockDim.x, block = step * U;
    for (Index start = blockIdx.x * block; start < chunks; start += gridDim.x * block) {
        Chunk<X, N> x[U], other[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            Index at = start + u * step + threadIdx.x;
            if (at >= chunks) break;
            x[u].read(xs + at * N);
            if (others) other[u].read(others + at * N);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            Index at = start + u * step + threadIdx.x;
            if (at >= chunks) break;
            Wide<Y> y[N];
#pragma unroll
            for (int i = 0; i < N; i++) y[i] = f(wide(x[u].at(i)), others ? wide(other[u].at(i)) : 0);
            write_chunk(ys + at * N, y);
        }
    }
    Index stride = (Index)gridDim.x * blockDim.x;
    for (Index i = chunks * N + (Index)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += stride)
        ys[i] = narrow<Y>(f(wide(xs[i]), others ? wide(others[i]) : 0));
}
