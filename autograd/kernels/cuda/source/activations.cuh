// Activations of a number x: the value y = f(x), and the derivative d = f'(x). Each is a class with a function of both, which
// share most of their work; the compiler leaves out what is not used.

// 1 / x for x >= 1, and 0 for infinity.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1 / x; }

template <typename W> __device__ __forceinline__ W sigmoid(W x) { return inverse(1 + exponential(-x)); }

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

// y = x h, h = 1 / (1 + exp(-x)); d = h + y (1 - h)
template <typename W> struct Silu {
    __device__ static __forceinline__ void at(W x, W &y, W &d) {
        W h = sigmoid(x);
        y = x * h;
        d = h + y * (1 - h);
    }
};

// y = max(x, 0); d = 1 where x > 0, else 0. Both are NaN for NaN. So d is also that of y.
template <typename W> struct Relu {
    __device__ static __forceinline__ void at(W x, W &y, W &d) {
        y = x > 0 || x != x ? x : 0;
        d = x > 0 ? 1 : x != x ? x : 0;
    }
};

// No activation.
template <typename W> struct Plain {
    __device__ static __forceinline__ void at(W x, W &y, W &d) { y = x, d = 1; }
};
