// GELU and SiLU. Backward computes the derivative again, from x, which the tape has anyway. To keep the derivative would
// write the size of x more in forward and read as much in backward: the arithmetic costs less, even of 16 bits.

// y = f(x), or, with a cotangent, ct f'(x).
template <template <typename> class F, typename T>
__device__ __forceinline__ void map(const T *xs, const T *cts, T *ys, Index size) {
    map_elements(xs, cts, ys, size, [=](Wide<T> x, Wide<T> ct) {
        Wide<T> y, d;
        F<Wide<T>>::at(x, y, d);
        return cts ? ct * d : y;
    });
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
