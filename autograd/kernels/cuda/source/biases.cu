// The bias of linear layers with the activation after it, and the gradients of both: see biases.py.
//
// A block has 256 threads: blockDim.x packs of columns in blockDim.y rows. A thread has the same columns in all of its rows,
// and so keeps their biases, and the sums that are the bias's gradient, in registers. Four rows are read together.

template <typename T, int N> __device__ __forceinline__ Pack<T, N> plus(const Pack<T, N> &x, const Pack<T, N> &y) {
    Wide<T> sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = wide(x.at[i]) + wide(y.at[i]);
    return narrow_all<T>(sum);
}

// y = f(x + bias), where x + bias is rounded first, as if it were written. y may be x.
template <typename T, template <typename> class F>
__global__ void __launch_bounds__(256, 3) add_bias(const T *xs, const T *bias, T *ys, Index rows, int width) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N, U = 4;
    Row<T> row(width);
    int pack = blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= row.packs) return;
    Packed b = row.read(bias, row.fits(bias), pack, T{});
    bool is_fast = row.is_whole(pack) && width % N == 0 && row.fits(xs) && row.fits(ys);
    Index step = blockDim.y, each = step * U;
    auto value = [&](const Packed &x) {
        Packed z = plus<T>(x, b);
        Wide<T> found[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            Wide<T> d;
            F<Wide<T>>::at(wide(z.at[i]), found[i], d);
        }
        return narrow_all<T>(found);
    };
    for (Index first = blockIdx.y * each + threadIdx.y; first < rows; first += gridDim.y * each) {
        if (is_fast && first + (U - 1) * step < rows) {
            Packed x[U];
#pragma unroll
            for (int u = 0; u < U; u++) x[u] = row.read(xs + (first + u * step) * width, true, pack, T{});
#pragma unroll
            for (int u = 0; u < U; u++) row.write(ys + (first + u * step) * width, true, pack, value(x[u]));
        } else {
            for (int u = 0; u < U && first + u * step < rows; u++) {
                Index start = (first + u * step) * width;
                Packed x = row.read(xs + start, row.fits(xs + start), pack, T{});
                row.write(ys + start, row.fits(ys + start), pack, value(x));
            }
        }
    }
}

// g = ct f'(x + bias), and the sums of g over the rows of this block: in `parts`, [gridDim.y, width], or, where that is null,
// in `sums`. `bias` may be null; without xs, g is ct, and is not written. g may be x.
template <typename T, template <typename> class F>
__global__ void __launch_bounds__(256)
add_bias_backward(const T *cts, const T *xs, const T *bias, T *gs, Wide<T> *parts, T *sums, Index rows, int width) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N, U = 4;
    __shared__ Wide<T> scratch[32 * N];
    Row<T> row(width);
    int pack = blockIdx.x * blockDim.x + threadIdx.x;
    bool is_own = pack < row.packs;
    Wide<T> sum[N] = {};
    Packed b = {};
    if (is_own && bias) b = row.read(bias, row.fits(bias), pack, T{});
    bool is_fast = is_own && row.is_whole(pack) && width % N == 0 && row.fits(cts) && row.fits(xs) && row.fits(gs);
    Index step = blockDim.y, each = step * U;
    auto value = [&](const Packed &ct, const Packed &x) {
        Packed z = bias ? plus<T>(x, b) : x;
        Wide<T> found[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            Wide<T> y, d;
            F<Wide<T>>::at(wide(z.at[i]), y, d);
            found[i] = wide(ct.at[i]) * d;
        }
        return narrow_all<T>(found);
    };
    auto add = [&](const Packed &g) {
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += wide(g.at[i]);
    };
    for (Index first = blockIdx.y * each + threadIdx.y; is_own && first < rows; first += gridDim.y * each) {
        if (is_fast && first + (U - 1) * step < rows) {
            Packed ct[U], x[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                Index start = (first + u * step) * width;
                ct[u] = row.read(cts + start, true, pack, T{});
                if (xs) x[u] = row.read(xs + start, true, pack, T{});
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (xs) {
                    ct[u] = value(ct[u], x[u]);
                    row.write(gs + (first + u * step) * width, true, pack, ct[u]);
                }
                add(ct[u]);
            }
        } else {
            for (int u = 0; u < U && first + u * step < rows; u++) {
                Index start = (first + u * step) * width;
                Packed ct = row.read(cts + start, row.fits(cts + start), pack, T{});
                if (xs) {
                    ct = value(ct, row.read(xs + start, row.fits(xs + start), pack, T{}));
                    row.write(gs + start, row.fits(gs + start), pack, ct);
                }
                add(ct);
            }
        }
    }
    add_in_turn(scratch, sum);
    if (threadIdx.y > 0 || !is_own) return;
    Wide<T> found[N];
#pragma unroll
    for (int i = 0; i < N; i++) found[i] = scratch[i * blockDim.x + threadIdx.x];
    if (parts) {
        for (int i = 0; i < N; i++)
            if (row.has(pack, i)) parts[(Index)blockIdx.y * width + (Index)pack * N + i] = found[i];
    } else {
        row.write(sums, row.fits(sums), pack, narrow_all<T>(found));
    }
}
