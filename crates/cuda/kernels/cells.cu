// The kernels that run a step of a cell. A step is a list of stages (src/program.rs): chains of
// element-wise instructions, matrix products (cuBLAS), and reductions of rows. Rows of state are read
// and written in place by index, so that members may join and leave between any two steps.
//
// compute_80, no headers: NVRTC compiles it to cells.ptx (scripts/ptx). src/kernel_tests.rs
// compiles it with a C++ compiler and HOST, one thread a block, and compares it with src/host.rs.

typedef unsigned int u32;
typedef unsigned short u16;

#ifndef HOST
#define THREADS 256
#endif
#define DEPTH 8
#define ENTRY 16
#define CODE 64  // instructions that a block keeps
#define STAGED 0x80000000u

struct Instr { u32 op, a, b, c; };
struct Segment { u32 first, count, width, wide; };
struct __align__(16) Four { float v[4]; };

struct Step {
    const u32* entries;    // in host memory: one entry for each row
    u32* current;          // the entries' copy on the device
    const u32* staged;     // in host memory: inputs that are no rows of the device
    u32* results;          // in host memory: outputs that the host reads
    u32* faults;           // in host memory: not 0 for a row with an id outside of its table
    u32* arena;            // rows of state
    u32* scratch;          // matrices between stages
    const u32* constants;  // weights, tables, numbers
    const Instr* code;
    const Segment* segments;
    u32* words;            // 0: steps done, 1: blocks done
    u32* signal;           // in host memory: steps done
    u32 entry_width;       // row of each feed, then the row to write, then the outputs to report
    u32 result_width;
};

// Instructions; the numbers are those of `Op` in src/program.rs.
enum {
    MATRIX, FEED, ENTRY_WORD, CONSTANT, LOOK_UP,
    KEEP_MATRIX, KEEP_HALF, KEEP_ROW, KEEP_RESULT, CLEAR,
    ADD, SUB, MUL, DIV, EQUAL, EQUAL_INT,
    SIGMOID, TANH, RELU, EXP, NEG, ABS, SQRT, TO_FLOAT, TO_INT, NOT
};

__device__ inline u16 half_of(float x) {
#ifdef HOST
    return host_half(x);
#else
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#endif
}

// What an id outside of its table gives.
__device__ inline float nan_float() { return __int_as_float(0x7fffffff); }

__device__ inline int to_int(float x) {
    if (!(x == x)) return 0;
    if (x >= 2147483648.f) return 2147483647;
    if (x <= -2147483648.f) return -2147483647 - 1;
    return (int)x;
}

template <int V> __device__ inline Four load(const u32* from, u32 step) {
    Four to;
    if (V == 4 && step) return *(const Four*)from;
    for (int q = 0; q < V; q++) to.v[q] = __int_as_float((int)from[step ? q : 0]);
    return to;
}

template <int V> __device__ inline void store(u32* to, const Four& from) {
    if (V == 4) { *(Four*)to = from; return; }
    for (int q = 0; q < V; q++) to[q] = (u32)__float_as_int(from.v[q]);
}

// The operation is chosen once for all columns of a thread, whose arithmetic then overlaps.
#define EACH(expression) \
    _Pragma("unroll") for (int q = 0; q < V; q++) { float a = x.v[q]; x.v[q] = (expression); } \
    break;
template <int V> __device__ inline Four unary(u32 op, Four x) {
    switch (op) {
        case SIGMOID: EACH(__fdividef(1.f, 1.f + __expf(-a)))
        case TANH: EACH(tanhf(a))
        case RELU: EACH(a < 0.f ? 0.f : a)
        case EXP: EACH(expf(a))
        case NEG: EACH(-a)
        case ABS: EACH(fabsf(a))
        case SQRT: EACH(sqrtf(a))
        case TO_FLOAT: EACH((float)__float_as_int(a))
        case TO_INT: EACH(__int_as_float(to_int(a)))
        case NOT: EACH(__int_as_float(__float_as_int(a) == 0))
    }
    return x;
}

template <int V> __device__ inline Four binary(u32 op, Four x, Four y) {
    switch (op) {
        case ADD: EACH(a + y.v[q])
        case SUB: EACH(a - y.v[q])
        case MUL: EACH(a * y.v[q])
        case DIV: EACH(a / y.v[q])
        case EQUAL: EACH(__int_as_float(a == y.v[q]))
        case EQUAL_INT: EACH(__int_as_float(__float_as_int(a) == __float_as_int(y.v[q])))
    }
    return x;
}

// Runs a segment for one row: each thread takes V neighbouring columns through all instructions.
template <int V>
__device__ void segment(const Step& s, const Instr* code, const u32* entry, const Segment& g, u32 row, Four (*stack)[THREADS]) {
    u32 feeds = s.entry_width - 2;
    for (u32 j = threadIdx.x * V; j < g.width; j += blockDim.x * V) {
        Four acc = {};
        int depth = 0;
        for (u32 at = 0; at < g.count; at++) {
            Instr i = at < CODE ? code[at] : s.code[g.first + at];
            if (i.op <= CONSTANT) stack[depth++][threadIdx.x] = acc;
            switch (i.op) {
                case MATRIX:  // a: first word, b: words a row, c: whether columns differ
                    acc = load<V>(s.scratch + i.a + (size_t)row * i.b + (i.c ? j : 0), i.c);
                    break;
                case FEED: {  // a: feed + 16 * staged words a row, b: where they begin, c: 2 * offset + whether columns differ
                    u32 from = entry[i.a % ENTRY], column = (i.c >> 1) + (i.c & 1 ? j : 0);
                    acc = from & STAGED
                        ? load<V>(s.staged + i.b + (size_t)row * (i.a / ENTRY) + column, i.c & 1)
                        : load<V>(s.arena + (size_t)from * 4 + column, i.c & 1);
                    break;
                }
                case ENTRY_WORD:  // a: feed
                    for (int q = 0; q < V; q++) acc.v[q] = __int_as_float((int)entry[i.a]);
                    break;
                case CONSTANT:
                    acc = load<V>(s.constants + i.a + (i.c ? j : 0), i.c);
                    break;
                case LOOK_UP: {  // a: table, b: words a row, c: rows; the id is taken. A wrong one marks the row.
                    int id = __float_as_int(acc.v[0]);
                    if (id < 0) id += (int)i.c;
                    if (id >= 0 && id < (int)i.c) acc = load<V>(s.constants + i.a + (size_t)id * i.b + j, 1);
                    else {
                        for (int q = 0; q < V; q++) acc.v[q] = nan_float();
                        s.faults[row] = 1;
                    }
                    break;
                }
                case KEEP_MATRIX:
                    store<V>(s.scratch + i.a + (size_t)row * i.b + j, acc);
                    break;
                case KEEP_HALF: {  // b and the place are counted in halves
                    u16* to = (u16*)(s.scratch + i.a) + (size_t)row * i.b + i.c + j;
                    for (int q = 0; q < V; q++) to[q] = half_of(acc.v[q]);
                    break;
                }
                case KEEP_ROW:  // a: offset in the row
                    store<V>(s.arena + (size_t)entry[feeds] * 4 + i.a + j, acc);
                    break;
                case KEEP_RESULT:  // a: column, b: output
                    if (entry[feeds + 1] >> i.b & 1) store<V>(s.results + (size_t)row * s.result_width + i.a + j, acc);
                    break;
                case CLEAR: depth = 0; break;
                case ADD: case SUB: case MUL: case DIV: case EQUAL: case EQUAL_INT:
                    acc = binary<V>(i.op, stack[--depth][threadIdx.x], acc);
                    break;
                default: acc = unary<V>(i.op, acc);
            }
        }
    }
}

// Runs segments: a block for each row and segment. `fresh`: the entries are still in host memory only.
// `last`: the step ends here; the last block raises the number of steps in host memory.
extern "C" __global__ void chain(Step s, u32 first, u32 fresh, u32 last) {
    __shared__ Four stack[DEPTH][THREADS];
    __shared__ Instr code[CODE];
    __shared__ u32 entry[ENTRY];
    u32 row = blockIdx.x;
    Segment g = s.segments[first + blockIdx.y];
    for (u32 at = threadIdx.x; at < g.count && at < CODE; at += blockDim.x) code[at] = s.code[g.first + at];
    for (u32 at = threadIdx.x; at < s.entry_width; at += blockDim.x) {
        u32 word = (fresh ? s.entries : s.current)[(size_t)row * s.entry_width + at];
        entry[at] = word;
        if (fresh && blockIdx.y == 0) s.current[(size_t)row * s.entry_width + at] = word;
    }
    __syncthreads();
    if (g.wide) segment<4>(s, code, entry, g, row, stack);
    else segment<1>(s, code, entry, g, row, stack);
    if (!last) return;
    if (entry[s.entry_width - 1]) __threadfence_system(); else __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&s.words[1], 1u) == gridDim.x * gridDim.y - 1) {
        s.words[1] = 0;
        u32 done = ++s.words[0];
        __threadfence_system();
        *(volatile u32*)s.signal = done;
    }
}

// Reduces each row of a matrix. kind 0: the index of its largest number, the first of equal ones;
// kind 1: its softmax.
extern "C" __global__ void reduce(Step s, u32 kind, u32 from, u32 from_stride, u32 width, u32 to, u32 to_stride) {
    __shared__ float best[THREADS];
    __shared__ u32 where[THREADS];
    u32 t = threadIdx.x;
    const u32* x = s.scratch + from + (size_t)blockIdx.x * from_stride;
    u32* y = s.scratch + to + (size_t)blockIdx.x * to_stride;
    float top = __int_as_float((int)0xff800000u);
    u32 at = 0xffffffffu;
    for (u32 j = t; j < width; j += blockDim.x) {
        float a = __int_as_float((int)x[j]);
        if (a > top || at == 0xffffffffu) { top = a; at = j; }
    }
    best[t] = top; where[t] = at;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) {
            float a = best[t + half];
            u32 b = where[t + half];
            if (b != 0xffffffffu && (a > best[t] || where[t] == 0xffffffffu || (a == best[t] && b < where[t]))) {
                best[t] = a; where[t] = b;
            }
        }
        __syncthreads();
    }
    if (kind == 0) {
        if (t == 0) y[0] = where[0];
        return;
    }
    top = best[0];
    __syncthreads();
    float sum = 0.f;
    for (u32 j = t; j < width; j += blockDim.x) {
        float a = expf(__int_as_float((int)x[j]) - top);
        y[j] = (u32)__float_as_int(a);
        sum += a;
    }
    best[t] = sum;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) best[t] += best[t + half];
        __syncthreads();
    }
    sum = best[0];
    for (u32 j = t; j < width; j += blockDim.x) y[j] = (u32)__float_as_int(__int_as_float((int)y[j]) / sum);
}
