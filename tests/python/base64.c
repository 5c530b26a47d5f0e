/* The five functions of libb64 that perf_analyzer links against, written anew for these tests: base64 without line
 * breaks, encoded and decoded piece by piece. The caller owns the state; it gives 12 bytes to encode and 8 to decode. */

#include <stdint.h>

struct encoding {
    uint32_t bits;
    uint32_t count; /* bytes held in `bits`, 0 to 2 */
};

struct decoding {
    uint32_t bits;
    uint32_t count; /* characters held in `bits`, 0 to 3 */
};

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_init_encodestate(struct encoding *state) {
    state->bits = 0;
    state->count = 0;
}

int base64_encode_block(const char *in, int length, char *out, struct encoding *state) {
    char *start = out;
    for (int i = 0; i < length; i++) {
        state->bits = state->bits << 8 | (uint8_t)in[i];
        if (++state->count == 3) {
            for (int shift = 18; shift >= 0; shift -= 6)
                *out++ = ALPHABET[state->bits >> shift & 63];
            base64_init_encodestate(state);
        }
    }
    return (int)(out - start);
}

int base64_encode_blockend(char *out, struct encoding *state) {
    if (state->count == 0)
        return 0;
    uint32_t bits = state->bits << (state->count == 1 ? 16 : 8);
    out[0] = ALPHABET[bits >> 18 & 63];
    out[1] = ALPHABET[bits >> 12 & 63];
    out[2] = state->count == 2 ? ALPHABET[bits >> 6 & 63] : '=';
    out[3] = '=';
    base64_init_encodestate(state);
    return 4;
}

void base64_init_decodestate(struct decoding *state) {
    state->bits = 0;
    state->count = 0;
}

static int value_of(char c) {
    for (int i = 0; i < 64; i++)
        if (ALPHABET[i] == c)
            return i;
    return -1;
}

int base64_decode_block(const char *in, int length, char *out, struct decoding *state) {
    char *start = out;
    for (int i = 0; i < length; i++) {
        int value = value_of(in[i]);
        if (value < 0)
            continue; /* padding and line breaks */
        state->bits = state->bits << 6 | (uint32_t)value;
        /* Each character after the first of four completes a byte. */
        if (state->count > 0)
            *out++ = (char)(state->bits >> (6 - 2 * state->count));
        state->count = (state->count + 1) % 4;
    }
    return (int)(out - start);
}
