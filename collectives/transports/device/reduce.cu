// The sum of the ranks' arrays, which lie in memory that this GPU reads. They are added in order of rank, so that all
// ranks get the same bits.

constexpr int MOST_RANKS = 8;

__device__ __forceinline__ unsigned wide(unsigned x) { return x; }
__device__ __forceinline__ unsigned long long wide(unsigned long long x) { return x; }

template <> struct Narrow<unsigned> {
    typedef unsigned Wide;
    __device__ static __forceinline__ unsigned of(unsigned x) { return x; }
};

template <> struct Narrow<unsigned long long> {
    typedef unsigned long long Wide;
    __device__ static __forceinline__ unsigned long long of(unsigned long long x) { return x; }
};

// Each thread adds packs of 16 bytes, and single elements where an array does not begin at a multiple of 16 bytes.
template <typename T>
__global__ void add_ranks(const T *p0, const T *p1, const T *p2, const T *p3, const T *p4, const T *p5, const T *p6,
                          const T *p7, T *out, int ranks, Index size) {
    constexpr int N = 16 / sizeof(T);
    const T *parts[MOST_RANKS] = {p0, p1, p2, p3, p4, p5, p6, p7};
    Index stride = (Index)gridDim.x * blockDim.x, at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long bits = (unsigned long long)out;
#pragma unroll
    for (int r = 0; r < MOST_RANKS; r++) bits |= (unsigned long long)parts[r];  // those that are left out are null
    Index packs = bits % 16 == 0 ? size / N : 0;
    for (Index pack = at; pack < packs; pack += stride) {
        Wide<T> total[N];
        Pack<T, N> given = reinterpret_cast<const Pack<T, N> *>(p0)[pack];
#pragma unroll
        for (int i = 0; i < N; i++) total[i] = wide(given.at[i]);
#pragma unroll
        for (int r = 1; r < MOST_RANKS; r++) {
            if (r >= ranks) continue;
            given = reinterpret_cast<const Pack<T, N> *>(parts[r])[pack];
#pragma unroll
            for (int i = 0; i < N; i++) total[i] += wide(given.at[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) given.at[i] = narrow<T>(total[i]);
        reinterpret_cast<Pack<T, N> *>(out)[pack] = given;
    }
    for (Index i = packs * N + at; i < size; i += stride) {
        Wide<T> total = wide(p0[i]);
#pragma unroll
        for (int r = 1; r < MOST_RANKS; r++)
            if (r < ranks) total += wide(parts[r][i]);
        out[i] = narrow<T>(total);
    }
}
