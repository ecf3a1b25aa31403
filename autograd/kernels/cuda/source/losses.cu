// Cross-entropy of rows of logits, and its terms for a part of the classes.
//
// Forward reads the logits once: each thread keeps the largest logit so far, and the sum of the exponentials relative to
// it. Source: Milakov & Gimelshein 2018 (Online normalizer calculation for softmax), algorithm 3. Backward computes the
// exponentials again. To keep them would write the size of the logits in forward and read it in backward, in the place
// of the logits, which the tape has anyway.

// What a label is. A label that is out of range cannot raise an error without a wait for the GPU: its loss is NaN.
struct Label {
    Index at;
    bool is_ignored, is_inside;

    __device__ __forceinline__ Label(const void *labels, Index row, int is_long, int width, int ignores, Index ignored)
        : at(is_long ? reinterpret_cast<const Index *>(labels)[row] : reinterpret_cast<const int *>(labels)[row]),
          is_ignored(ignores && at == ignored), is_inside(at >= 0 && at < width) {}
};

// Where `linear` is null `out` gets the losses, log(sum(exp(x))) - linear; else the two terms. A label of a part may be
// negative: another part has the class. `tops` and `sums` may be null.
template <typename T>
__global__ void __launch_bounds__(512)
class_terms(const T *logits, const void *labels, T *out, T *linear, Wide<T> *tops, Wide<T> *sums, Index rows, int width,
            int is_long, int ignores, Index ignored, double smoothing, double spread) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    __shared__ Wide<T> scratch[3][32];
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, start = index < rows ? index * width : 0;
    Row<T> row(logits + start, index < rows ? width : 0);
    Wide<T> least = -infinity<Wide<T>>(), top = least, sum = 0, total = 0;
    each_pack<4>(row, logits + start, lowest<T>(), [&](const Packed &x, int p) {
        Wide<T> most = top;
        for (int i = 0; i < N; i++) most = larger(most, wide(x.at[i]));
        if (most > top) {
            sum *= exponential(top - most);
            top = most;
        }
        Wide<T> shift = top == least ? 0 : top;
        for (int i = 0; i < N; i++) sum += exponential(wide(x.at[i]) - shift);
        if (spread != 0)
            for (int i = 0; i < N; i++)
                if (row.has(p, i)) total += wide(x.at[i]);
    });
    Wide<T> own = top;
    top = over_row(top, scratch[0], Max());
    if (top == least) top = 0;  // a row of -inf, or of no classes, has the sum 0
    sum = over_row(sum * exponential(own - top), scratch[1], Add());
    if (spread != 0) total = over_row(total, scratch[2], Add());
    if (threadIdx.x > 0 || index >= rows) return;
    Label label(labels, index, is_long, width, ignores, ignored);
    Wide<T> picked = label.is_inside ? wide(logits[start + label.at]) * (Wide<T>)(1 - smoothing) : 0;
    bool is_wrong = !label.is_inside && !(linear && label.at < 0);
    Wide<T> log_sum = logarithm(sum), target = picked + total * (Wide<T>)spread;
    if (is_wrong) target = infinity<Wide<T>>() - infinity<Wide<T>>();
    if (linear) {
        out[index] = narrow<T>(log_sum + top);
        linear[index] = narrow<T>(target);
    } else {
        out[index] = narrow<T>(label.is_ignored ? 0 : log_sum + (top - target));
    }
    if (tops) {
        tops[index] = top;
        sums[index] = sum;
    }
}

// ct (softmax - (1 - smoothing) one_hot - spread), or, where `linear_cts` is given, ct softmax + linear_ct (...).
template <typename T>
__global__ void __launch_bounds__(512)
class_terms_backward(const T *cts, const T *linear_cts, const T *logits, const void *labels, const Wide<T> *tops,
                     const Wide<T> *sums, T *dxs, Index rows, int width, int is_long, int ignores, Index ignored,
                     double smoothing, double spread) {
    typedef typename Row<T>::Packed Packed;
    constexpr int N = Row<T>::N;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y;
    if (index >= rows) return;
    Index start = index * width;
    Row<T> row(logits + start, width);
    bool is_fit = row.fits(dxs + start);
    Label label(labels, index, is_long, width, ignores, ignored);
    Wide<T> ct = wide(cts[index]), sum = sums[index], top = tops[index];
    Wide<T> linear_ct = linear_cts ? wide(linear_cts[index]) : -ct;
    Wide<T> even = linear_ct * (Wide<T>)spread, peak = linear_ct * (Wide<T>)(1 - smoothing);
    bool is_part = linear_cts != nullptr, is_ignored = label.is_ignored && !is_part;
    Wide<T> factor = is_part && sum == 0 ? 0 : ct / sum;  // a part without probability; of all classes it is NaN
    if (!label.is_inside && !(is_part && label.at < 0)) factor = infinity<Wide<T>>() - infinity<Wide<T>>();
    if (is_ignored) {
        Packed zeros = {};
        for (int p = threadIdx.x; p < row.packs; p += blockDim.x) row.write(dxs + start, is_fit, p, zeros);
        return;
    }
    int place = label.is_inside ? (int)label.at + row.before : -1;
    each_pack<4>(row, logits + start, T{}, [&](const Packed &x, int p) {
        Wide<T> dx[N];
        for (int i = 0; i < N; i++) {
            dx[i] = factor * exponential(wide(x.at[i]) - top) + even;
            if (p * N + i == place) dx[i] += peak;
        }
        row.write(dxs + start, is_fit, p, narrow_all<T>(dx));
    });
}
