// GELU and SiLU. Backward computes the derivative again, from x, which the tape has anyway. To keep the derivative would
// write the size of x more in forward and read as much in backward: the arithmetic costs less, even of 16 bits.

// 1 / x for x >= 1, and 0 for infinity.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1 / x; }

// y = x h, h = 1 / (1 + exp(-x)); d = h + y (1 - h)
template <typename W> struct Silu {
    __device__ static __forceinline__ void at(W x, W &y, W &d) {
        W h = inverse(1 + exponential(-x));
        y = x * h;
        d = h + y * (1 - h);
    }
};

// y = x h, h = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3); d = h + y (1 - h) 2 du/dx
template <typename W> struct GeluTanh {
    __device__ static __forceinline__ void at(W x, W &y, W &d) {
        const W slope = (W)1.5957691216057308, cube = slope * (W)0.044715;
        W z = x > 20 ? 20 : x < -20 ? -20 : x;  // where h is 1 or 0, and x^3 does not overflow
        W square = z * z, h = inverse(1 + exponential(-z * (slope + cube * square)));
        y = x * h;
        d = h + z * h * (1 - h) * (slope + 3 * cube * square);
    }
};

// P(x), the normal distribution function, given e = exp(-x^2 / 2), to 1.5e-7: the formula of the host's kernel.
// Source: Abramowitz & Stegun 1964, formula 7.1.26 (Hastings).
__device__ __forceinline__ float normal_cdf(float x, float e) {
    float t = inverse(1 + 0.23164189f * fabsf(x));
    float tail = (((((0.53070271f * t - 0.72657601f) * t) + 0.71070687f) * t - 0.14224837f) * t + 0.12741480f) * t * e;
    return x > 0 ? 1 - tail : tail;
}
__device__ __forceinline__ double normal_cdf(double x, double e) { return 0.5 * erfc(x * -0.70710678118654752440); }

// y = x P(x); d = P(x) + x p(x), with the normal density p
template <typename W> struct GeluErf {
    __device__ static __forceinline__ void at(W x, W &y, W &d) {
        W e = exponential(x * x * (W)-0.5), h = normal_cdf(x, e);
        y = x * h;
        d = h + x * e * (W)0.39894228040143267794;
    }
};

// y = f(x), or, with a cotangent, ct f'(x). Each thread reads U packs of x (and of ct) before it uses them: 32 KiB per
// multiprocessor would be under way with one, which is too little.
template <template <typename> class F, typename T>
__device__ __forceinline__ void map(const T *xs, const T *cts, T *ys, Index size) {
    constexpr int N = 16 / sizeof(T), U = 4;
    typedef Pack<T, N> Packed;
    bool is_aligned = ((unsigned long long)xs | (unsigned long long)cts | (unsigned long long)ys) % 16 == 0;
    Index packs = is_aligned ? size / N : 0, step = blockDim.x, block = step * U;
    for (Index start = blockIdx.x * block; start < packs; start += gridDim.x * block) {
        Packed x[U], ct[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            Index at = start + u * step + threadIdx.x;
            if (at >= packs) break;
            x[u] = reinterpret_cast<const Packed *>(xs)[at];
            if (cts) ct[u] = reinterpret_cast<const Packed *>(cts)[at];
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            Index at = start + u * step + threadIdx.x;
            if (at >= packs) break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                Wide<T> y, d;
                F<Wide<T>>::at(wide(x[u].at[i]), y, d);
                x[u].at[i] = narrow<T>(cts ? wide(ct[u].at[i]) * d : y);
            }
            reinterpret_cast<Packed *>(ys)[at] = x[u];
        }
    }
    Index stride = (Index)gridDim.x * blockDim.x;
    for (Index i = packs * N + (Index)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += stride) {
        Wide<T> y, d;
        F<Wide<T>>::at(wide(xs[i]), y, d);
        ys[i] = narrow<T>(cts ? wide(cts[i]) * d : y);
    }
}

template <typename T> __global__ void __launch_bounds__(256) silu(const T *x, const T *ct, T *y, Index size) {
    map<Silu>(x, ct, y, size);
}
template <typename T> __global__ void __launch_bounds__(256) gelu_tanh(const T *x, const T *ct, T *y, Index size) {
    map<GeluTanh>(x, ct, y, size);
}
template <typename T> __global__ void __launch_bounds__(256) gelu_erf(const T *x, const T *ct, T *y, Index size) {
    map<GeluErf>(x, ct, y, size);
}
