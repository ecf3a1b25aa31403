// Softmax and log-softmax of rows. A row is held in shared memory, so that it is read once. The part of a wide row for
// which shared memory is too small is read again, mostly from the second-level cache.

template <typename T>
__global__ void __launch_bounds__(1024) softmax(const T *xs, T *ys, Index rows, int width, int most, int is_log) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    constexpr bool keeps = sizeof(T) >= 4;  // the exponentials, in the place of the row; those of 16 bits would lose digits
    DYNAMIC_SHARED(memory);
    __shared__ Wide<T> scratch[2][32];
    Packed *held = reinterpret_cast<Packed *>(memory) + threadIdx.y * most;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, start = index < rows ? index * width : 0;
    Wide<T> least = -infinity<Wide<T>>();
    Row<T> row(xs + start, index < rows ? width : 0);
    bool is_fit = row.fits(ys + start);
    auto get = [&](int p) { return p < most ? held[p] : row.read(xs + start, true, p, lowest<T>()); };

    row.hold(held, most, xs + start, true, lowest<T>());
    end_group();
    wait_for_copies<0>();
    Wide<T> top = least;
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p);
        for (int i = 0; i < N; i++) top = larger(top, wide(x.at[i]));
    }
    top = over_row(top, scratch[0], Max());
    if (top == least) top = 0;  // a row of -inf has the sum 0
    Wide<T> sum = 0;
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p);
        for (int i = 0; i < N; i++) {
            Wide<T> e = exponential(wide(x.at[i]) - top);
            sum += e;
            if (keeps) x.at[i] = narrow<T>(e);
        }
        if (keeps && !is_log && p < most) held[p] = x;
    }
    sum = over_row(sum, scratch[1], Add());
    Wide<T> log_sum = logarithm(sum), factor = 1 / sum;
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p);
        Wide<T> y[N];
        for (int i = 0; i < N; i++) {
            Wide<T> v = wide(x.at[i]);
            if (is_log) y[i] = v - top - log_sum;  // not minus their sum, which has few digits left where top is large
            else y[i] = (keeps && p < most ? v : exponential(v - top)) * factor;
        }
        row.write(ys + start, is_fit, p, narrow_all<T>(y));
    }
}

// softmax: y (ct - sum(ct y)); log-softmax: ct - exp(y) sum(ct).
template <typename T>
__global__ void __launch_bounds__(1024)
softmax_backward(const T *cts, const T *ys, T *dxs, Index rows, int width, int most, int is_log) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    DYNAMIC_SHARED(memory);
    __shared__ Wide<T> scratch[32];
    Packed *held = reinterpret_cast<Packed *>(memory) + threadIdx.y * 2 * most, *held_cts = held + most;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, start = index < rows ? index * width : 0;
    Row<T> row(ys + start, index < rows ? width : 0);
    bool is_fit = row.fits(dxs + start), fits_ct = row.fits(cts + start);
    auto get = [&](int p) { return p < most ? held[p] : row.read(ys + start, true, p, T{}); };
    auto get_ct = [&](int p) { return p < most ? held_cts[p] : row.read(cts + start, fits_ct, p, T{}); };

    row.hold(held, most, ys + start, true, T{});
    row.hold(held_cts, most, cts + start, fits_ct, T{});
    end_group();
    wait_for_copies<0>();
    Wide<T> sum = 0;
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed ct = get_ct(p);
        if (is_log) {
            for (int i = 0; i < N; i++) sum += wide(ct.at[i]);
        } else {
            Packed y = get(p);
            for (int i = 0; i < N; i++) sum += wide(ct.at[i]) * wide(y.at[i]);
        }
    }
    sum = over_row(sum, scratch, Add());
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed y = get(p), ct = get_ct(p);
        Wide<T> dx[N];
        for (int i = 0; i < N; i++) {
            Wide<T> v = wide(y.at[i]), c = wide(ct.at[i]);
            dx[i] = is_log ? c - exponential(v) * sum : v * (c - sum);
        }
        row.write(dxs + start, is_fit, p, narrow_all<T>(dx));
    }
}
