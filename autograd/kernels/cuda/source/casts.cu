// Conversions between floating dtypes.
template <typename X, typename Y> __global__ void __launch_bounds__(256) cast(const X *x, Y *y, Index size) {
    map_elements(x, (const X *)nullptr, y, size, [](Wide<X> v, Wide<X>) { return (Wide<Y>)v; });
}
