// Activations. Backward computes the derivative again, from x, which the tape has anyway. To keep the derivative would
// write the size of x more in forward and read as much in backward: the arithmetic costs less, even of 16 bits.

// y = f(x), or, with a cotangent, ct f'(x).
template <typename T, template <typename> class F>
__global__ void __launch_bounds__(256) activate(const T *xs, const T *cts, T *ys, Index size) {
    map_elements(xs, cts, ys, size, [=](Wide<T> x, Wide<T> ct) {
        Wide<T> y, d;
        F<Wide<T>>::at(x, y, d);
        return cts ? ct * d : y;
    });
}
