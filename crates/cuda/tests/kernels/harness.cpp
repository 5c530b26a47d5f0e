// Runs the kernels on the CPU, one thread a block, with a few names of CUDA in plain C++. Reads a
// step from FOLDER/in and writes rows of state and results to FOLDER/out.
#define HOST
#define THREADS 1
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#define __align__(n) alignas(n)
#define __device__
#define __global__
#define __shared__ static

struct Index { unsigned x, y; };
static Index blockIdx, threadIdx, blockDim{1, 1}, gridDim;
static void __syncthreads() {}
static void __threadfence() {}
static void __threadfence_system() {}
static unsigned atomicAdd(unsigned* at, unsigned by) { unsigned old = *at; *at += by; return old; }
static float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
static int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
static unsigned short host_half(float x) { return (unsigned short)(__float_as_int(x) >> 16); }

#include "../../kernels/cells.cu"

static std::vector<u32> words;
static size_t at;
static std::vector<u32> part(size_t count) {
    std::vector<u32> taken(words.begin() + at, words.begin() + at + count);
    at += count;
    return taken;
}
static std::vector<u32> list() { u32 count = part(1)[0]; return part(count); }
// A vector's memory begins at a multiple of 16 bytes here, as on a GPU.

int main(int, char** arguments) {
    std::string folder = arguments[1];
    FILE* in = fopen((folder + "/in").c_str(), "rb");
    for (u32 word; fread(&word, 4, 1, in) == 1;) words.push_back(word);
    fclose(in);
    auto sizes = part(3);
    auto entries = list(), staged = list(), results = list(), arena = list(), scratch = list(), constants = list();
    auto code = list(), segments = list();
    std::vector<u32> current(entries.size()), counters(2), signal(1), faults(sizes[0]);
    Step s{entries.data(), current.data(), staged.data(), results.data(), faults.data(), arena.data(), scratch.data(),
           constants.data(), (Instr*)code.data(), (Segment*)segments.data(), counters.data(), signal.data(), sizes[1], sizes[2]};
    u32 rows = sizes[0];
    while (at < words.size()) {
        auto n = list();
        gridDim = {rows, n.size() == 4 ? n[1] : 1};
        for (blockIdx.x = 0; blockIdx.x < rows; blockIdx.x++) {
            if (n.size() == 4) {
                for (blockIdx.y = 0; blockIdx.y < n[1]; blockIdx.y++) chain(s, n[0], n[2], n[3]);
            } else if (n.size() == 6) {
                blockIdx.y = 0;
                reduce(s, n[0], n[1], n[2], n[3], n[4], n[5]);
            } else {
                for (u32 j = 0; j < n[5]; j++) {
                    float sum = 0;
                    for (u32 k = 0; k < n[4]; k++) {
                        u32 w = constants[n[2] + (n[3] ? j * n[4] + k : k * n[5] + j)];
                        sum += __int_as_float((int)scratch[n[0] + blockIdx.x * n[1] + k]) * __int_as_float((int)w);
                    }
                    scratch[n[6] + blockIdx.x * n[7] + j] = (u32)__float_as_int(sum);
                }
            }
        }
    }
    FILE* out = fopen((folder + "/out").c_str(), "wb");
    fwrite(signal.data(), 4, 1, out);
    fwrite(arena.data(), 4, arena.size(), out);
    fwrite(faults.data(), 4, faults.size(), out);
    fwrite(results.data(), 4, results.size(), out);
    return fclose(out);
}
