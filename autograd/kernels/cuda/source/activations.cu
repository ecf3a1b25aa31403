// GELU and SiLU: the value and, where it is kept for backward, the derivative, in one pass.

template <typename T> struct Silu {
    // y = x h, h = 1 / (1 + exp(-x)); d = h + y (1 - h)
    __device__ static void at(Wide<T> x, Wide<T> &y, Wide<T> &d) {
        Wide<T> h = 1 / (1 + exponential(-x));
        y = x * h;
        d = h + y * (1 - h);
    }
};

// Each thread computes packs of N elements; d is null where nothing is kept.
template <typename F, typename T> __device__ __forceinline__ void map(const T *x, T *y, T *d, Index size) {
    constexpr int N = 16 / sizeof(T);
    Index stride = (Index)gridDim.x * blockDim.x, at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    bool is_aligned = ((unsigned long long)x | (unsigned long long)y | (unsigned long long)d) % 16 == 0;
    Index packs = is_aligned ? size / N : 0;
    for (Index pack = at; pack < packs; pack += stride) {
        Pack<T, N> given = reinterpret_cast<const Pack<T, N> *>(x)[pack], value, slope;
#pragma unroll
        for (int i = 0; i < N; i++) {
            Wide<T> v, s;
            F::at(wide(given.at[i]), v, s);
            value.at[i] = narrow<T>(v);
            slope.at[i] = narrow<T>(s);
        }
        reinterpret_cast<Pack<T, N> *>(y)[pack] = value;
        if (d) reinterpret_cast<Pack<T, N> *>(d)[pack] = slope;
    }
    for (Index i = packs * N + at; i < size; i += stride) {
        Wide<T> v, s;
        F::at(wide(x[i]), v, s);
        y[i] = narrow<T>(v);
        if (d) d[i] = narrow<T>(s);
    }
}

template <typename T> __global__ void silu(const T *x, T *y, T *d, Index size) { map<Silu<T>, T>(x, y, d, size); }
