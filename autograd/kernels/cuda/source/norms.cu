// Layer norm and RMS norm of rows. The mean is zero for RMS norm, whose `means` are null.

template <typename T>
__global__ void __launch_bounds__(1024)
norm(const T *xs, const T *weight, const T *bias, T *ys, Wide<T> *means, Wide<T> *scales, Index rows, int width, int most,
     double eps) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    DYNAMIC_SHARED(memory);
    __shared__ Wide<T> scratch[2][64];
    Packed *held = reinterpret_cast<Packed *>(memory) + threadIdx.y * most;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, start = index < rows ? index * width : 0;
    Row<T> row(xs + start, index < rows ? width : 0);
    bool is_fit = row.fits(ys + start), fits_weight = row.fits(weight), fits_bias = row.fits(bias);
    auto get = [&](int p) { return p < most ? held[p] : row.read(xs + start, true, p, T{}); };

    row.hold(held, most, xs + start, true, T{});
    end_group();
    wait_for_copies<0>();
    Wide<T> share = (Wide<T>)1 / width, mean = 0, sums[2] = {0, 0};
    if (means) {
        for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
            Packed x = get(p);
            for (int i = 0; i < N; i++) mean += wide(x.at[i]);
        }
        mean = over_row(mean, scratch[0], Add()) * share;
    }
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p);
        bool is_whole = row.is_whole(p);
        for (int i = 0; i < N; i++) {
            Wide<T> d = wide(x.at[i]) - mean;
            if (is_whole || row.has(p, i)) sums[0] += d, sums[1] += d * d;
        }
    }
    over_row(sums, scratch[1], Add());
    Wide<T> variance = sums[1] * share;
    if (means) {  // the mean was rounded: of a constant row the differences are its error, and no variance
        Wide<T> error = sums[0] * share;
        mean += error;
        variance = larger(variance - error * error, (Wide<T>)0);
    }
    Wide<T> scale = inverse_root(variance + (Wide<T>)eps);
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p), w, b;
        if (weight) w = row.read(weight, fits_weight, p, T{});
        if (bias) b = row.read(bias, fits_bias, p, T{});
        Wide<T> y[N];
        for (int i = 0; i < N; i++) {
            y[i] = (wide(x.at[i]) - mean) * scale;
            if (weight) y[i] *= wide(w.at[i]);
            if (bias) y[i] += wide(b.at[i]);
        }
        row.write(ys + start, is_fit, p, narrow_all<T>(y));
    }
    if (threadIdx.x == 0 && index < rows) {
        if (means) means[index] = mean;
        scales[index] = scale;
    }
}

// dx = (g - mean(g) - h mean(g h)) scale, with g = ct weight and h = (x - mean) scale.
template <typename T>
__global__ void __launch_bounds__(1024)
norm_backward(const T *cts, const T *xs, const T *weight, const Wide<T> *means, const Wide<T> *scales, T *dxs, Index rows,
              int width, int most) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    DYNAMIC_SHARED(memory);
    __shared__ Wide<T> scratch[64];
    Packed *held = reinterpret_cast<Packed *>(memory) + threadIdx.y * 2 * most, *held_cts = held + most;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, at = index < rows ? index : 0, start = at * width;
    Row<T> row(xs + start, index < rows ? width : 0);
    bool is_fit = row.fits(dxs + start), fits_ct = row.fits(cts + start), fits_weight = row.fits(weight);
    auto get = [&](int p) { return p < most ? held[p] : row.read(xs + start, true, p, T{}); };
    auto get_ct = [&](int p) { return p < most ? held_cts[p] : row.read(cts + start, fits_ct, p, T{}); };

    row.hold(held, most, xs + start, true, T{});
    row.hold(held_cts, most, cts + start, fits_ct, T{});
    end_group();
    Wide<T> mean = means ? means[at] : 0, scale = scales[at], share = (Wide<T>)1 / width, sums[2] = {0, 0};
    wait_for_copies<0>();
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p), ct = get_ct(p), w;
        if (weight) w = row.read(weight, fits_weight, p, T{});
        for (int i = 0; i < N; i++) {
            Wide<T> g = wide(ct.at[i]);
            if (weight) g *= wide(w.at[i]);
            sums[0] += g;
            sums[1] += row.has(p, i) ? g * ((wide(x.at[i]) - mean) * scale) : 0;
        }
    }
    over_row(sums, scratch, Add());
    Wide<T> first = means ? sums[0] * share : 0, second = sums[1] * share;
    for (int p = threadIdx.x; p < row.packs; p += blockDim.x) {
        Packed x = get(p), ct = get_ct(p), w;
        if (weight) w = row.read(weight, fits_weight, p, T{});
        Wide<T> dx[N];
        for (int i = 0; i < N; i++) {
            Wide<T> g = wide(ct.at[i]);
            if (weight) g *= wide(w.at[i]);
            dx[i] = (g - first - (wide(x.at[i]) - mean) * scale * second) * scale;
        }
        row.write(dxs + start, is_fit, p, narrow_all<T>(dx));
    }
}

// -- with the sums over the rows that are the gradients of weight and bias -------------------------------------------------
//
// The sums have the two stages of ``columns.cuh``. `parts` is [groups, 2, width], or [groups, 1, width] without means.

// `norm_backward`, and the sums of ct h and of ct over this block's rows. A thread has the same columns in all rows, and
// keeps their sums in registers: 16 columns of float or 16 bits, 8 of double, because with twice as many a
// multiprocessor would have too few threads. So 512 threads have 8,192 columns. Registers leave room for 512 threads on a
// multiprocessor, so the copies of the rows after the next are under way too: 24 KiB of two rows of 768 floats and four of
// 16 bits in each block of 256 threads.
template <typename T>
__global__ void __launch_bounds__(512)
norm_backward_sums(const T *cts, const T *xs, const T *weight, const Wide<T> *means, const Wide<T> *scales, T *dxs,
                   Wide<T> *parts, Index rows, int width) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N, K = sizeof(T) == 2 ? 2 : 4, STAGES = sizeof(T) == 2 ? 4 : 3;
    DYNAMIC_SHARED(memory);
    __shared__ Wide<T> scratch[2][64];
    int threads = blockDim.x * blockDim.y, me = thread_of_block();
    Packed *held = reinterpret_cast<Packed *>(memory) + me;  // [STAGES][x, ct][K][threads]
    Row<T> row(width);
    bool fits_weight = row.fits(weight);
    Packed w[K];
    Wide<T> dw[K][N] = {}, db[K][N] = {}, share = (Wide<T>)1 / width;
    if (weight)
#pragma unroll
        for (int k = 0; k < K; k++)
            if (threadIdx.x + k * blockDim.x < row.packs)
                w[k] = row.read(weight, fits_weight, threadIdx.x + k * blockDim.x, T{});

    auto fetch = [&](Index index, int stage) {
        if (index < rows) {
            const T *x = xs + index * width, *ct = cts + index * width;
            bool fits_x = row.fits(x), fits_ct = row.fits(ct);
            for (int k = 0; k < K; k++) {
                int p = threadIdx.x + k * blockDim.x;
                if (p >= row.packs) break;
                row.fetch(held + ((stage * 2 + 0) * K + k) * threads, x, fits_x, p, T{});
                row.fetch(held + ((stage * 2 + 1) * K + k) * threads, ct, fits_ct, p, T{});
            }
        }
        end_group();
    };

    Index step = (Index)gridDim.x * blockDim.y, first_row = (Index)blockIdx.x * blockDim.y;
    int stage = 0, parity = 0;
    for (int i = 0; i < STAGES - 1; i++) fetch(first_row + threadIdx.y + i * step, i);
    for (Index index = first_row + threadIdx.y; index - threadIdx.y < rows; index += step) {
        fetch(index + (STAGES - 1) * step, (stage + STAGES - 1) % STAGES);
        wait_for_copies<STAGES - 1>();
        bool is_row = index < rows;
        Wide<T> mean = means && is_row ? means[index] : 0, scale = is_row ? scales[index] : 0, sums[2] = {0, 0};
        Packed x[K], ct[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!is_row || threadIdx.x + k * blockDim.x >= row.packs) continue;
            x[k] = held[((stage * 2 + 0) * K + k) * threads];
            ct[k] = held[((stage * 2 + 1) * K + k) * threads];
#pragma unroll
            for (int i = 0; i < N; i++) {
                Wide<T> c = wide(ct[k].at[i]), g = weight ? c * wide(w[k].at[i]) : c;
                Wide<T> h = (wide(x[k].at[i]) - mean) * scale;
                bool is_inside = row.has(threadIdx.x + k * blockDim.x, i);
                sums[0] += g;
                sums[1] += is_inside ? g * h : 0;
                dw[k][i] += is_inside ? c * h : 0;
                db[k][i] += c;
            }
        }
        over_row(sums, scratch[parity], Add());  // in turn, so that the next rows need no barrier before they write it
        stage = (stage + 1) % STAGES, parity ^= 1;
        Wide<T> first = means ? sums[0] * share : 0, second = sums[1] * share;
        bool is_fit = is_row && row.fits(dxs + index * width);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!is_row || threadIdx.x + k * blockDim.x >= row.packs) continue;
#pragma unroll
            for (int i = 0; i < N; i += 2) {  // in place, and two by two: registers do not suffice for a second pack
                Wide<T> dx[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    Wide<T> c = wide(ct[k].at[i + j]), g = weight ? c * wide(w[k].at[i + j]) : c;
                    dx[j] = (g - first - (wide(x[k].at[i + j]) - mean) * scale * second) * scale;
                }
                Pack<T, 2> both = narrow_all<T>(dx);
                x[k].at[i] = both.at[0], x[k].at[i + 1] = both.at[1];
            }
            row.write(dxs + index * width, is_fit, threadIdx.x + k * blockDim.x, x[k]);
        }
    }
    wait_for_copies<0>();
    Wide<T> *sums = reinterpret_cast<Wide<T> *>(memory);  // [2][columns], in the place of the copies
    int columns = blockDim.x * K * N;
    for (int turn = 0; turn < blockDim.y; turn++) {
        __syncthreads();
        if (threadIdx.y != turn) continue;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                int column = (threadIdx.x + k * blockDim.x) * N + i;
                sums[column] = turn ? sums[column] + dw[k][i] : dw[k][i];
                sums[columns + column] = turn ? sums[columns + column] + db[k][i] : db[k][i];
            }
    }
    __syncthreads();
    int kinds = means ? 2 : 1;
    for (int kind = 0; kind < kinds; kind++)
        for (int column = me; column < width; column += threads)
            parts[((Index)blockIdx.x * kinds + kind) * width + column] = sums[kind * columns + column];
}

// The sums alone, for rows that are too wide for `norm_backward_sums`. A block is (32, 8), and has 32 packs of columns.
template <typename T>
__global__ void __launch_bounds__(256)
norm_sums(const T *cts, const T *xs, const Wide<T> *means, const Wide<T> *scales, Wide<T> *parts, Index rows, int width) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    __shared__ Wide<T> sums[2][32 * N];
    Row<T> row(width);
    int pack = blockIdx.x * 32 + threadIdx.x, kinds = means ? 2 : 1;
    Wide<T> dw[N] = {}, db[N] = {};
    if (pack < row.packs)
#pragma unroll 4
        for (Index index = (Index)blockIdx.y * 8 + threadIdx.y; index < rows; index += (Index)gridDim.y * 8) {
            const T *x = xs + index * width, *ct = cts + index * width;
            Packed v = row.read(x, row.fits(x), pack, T{}), c = row.read(ct, row.fits(ct), pack, T{});
            Wide<T> mean = means ? means[index] : 0, scale = scales[index];
            for (int i = 0; i < N; i++) {
                dw[i] += wide(c.at[i]) * ((wide(v.at[i]) - mean) * scale);
                db[i] += wide(c.at[i]);
            }
        }
    add_in_turn(sums[0], dw);
    add_in_turn(sums[1], db);
    for (int kind = threadIdx.y; kind < kinds; kind += 8)
        for (int i = 0; i < N; i++)
            if (row.has(pack, i))
                parts[((Index)blockIdx.y * kinds + kind) * width + (Index)pack * N + i] = sums[kind][i * 32 + threadIdx.x];
}
