/* Random numbers as functions of (seed, stream, element number), the same bits on every device.
 *
 * Read by two compilers: the OpenCL compiler (random_uniform.py, random_normal.py) and C++ (cpp/kernels/random.cpp),
 * which define before it:
 *   INLINE            the specifiers of a function that must be inlined
 *   SQRT_F4, SQRT_F8  square roots, correctly rounded
 *   HAVE_F8           whether there is double precision
 * Only operations that IEEE 754 and OpenCL round correctly are used (+, -, *, double division, SQRT_*, conversions),
 * never contracted into fused ones, so both compilers get the same numbers. No branches: both vectorise it.
 *
 * Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC'11. Counter: block number (low half), stream (high half); key: seed. Normal numbers: G. E. P. Box, M. E. Muller,
 * "A note on the generation of random normal deviates", Annals of Mathematical Statistics 29 (1958).
 */
typedef struct {
  uint x, y, z, w;
} philox_words;

#define PHILOX_ROUND(c, key_low, key_high)                            \
  { \
    const ulong even = (ulong)(c).x * 0xD2511F53u;                    \
    const ulong odd = (ulong)(c).z * 0xCD9E8D57u;                     \
    (c).x = (uint)(odd >> 32) ^ (c).y ^ (uint)(key_low);              \
    (c).z = (uint)(even >> 32) ^ (c).w ^ (uint)(key_high);            \
    (c).y = (uint)odd;                                                \
    (c).w = (uint)even;                                               \
  }
#define PHILOX_KEYED_ROUND(c, low, high, i) PHILOX_ROUND(c, (low) + (i) * 0x9E3779B9u, (high) + (i) * 0xBB67AE85u)

INLINE philox_words philox4x32_10(ulong block, ulong stream, ulong seed) {
  philox_words c;
  const uint low = (uint)seed, high = (uint)(seed >> 32);
  c.x = (uint)block;
  c.y = (uint)(block >> 32);
  c.z = (uint)stream;
  c.w = (uint)(stream >> 32);
  PHILOX_KEYED_ROUND(c, low, high, 0u)
  PHILOX_KEYED_ROUND(c, low, high, 1u)
  PHILOX_KEYED_ROUND(c, low, high, 2u)
  PHILOX_KEYED_ROUND(c, low, high, 3u)
  PHILOX_KEYED_ROUND(c, low, high, 4u)
  PHILOX_KEYED_ROUND(c, low, high, 5u)
  PHILOX_KEYED_ROUND(c, low, high, 6u)
  PHILOX_KEYED_ROUND(c, low, high, 7u)
  PHILOX_KEYED_ROUND(c, low, high, 8u)
  PHILOX_KEYED_ROUND(c, low, high, 9u)
  return c;
}

/* ---- single precision: one word gives one uniform number, two words give two normal ones ---- */

/* [0, 1) in steps of 2^-24. */
INLINE float uniform_f4(uint word) { return (float)(int)(word >> 8) * 0x1p-24f; }

/* sqrt(-2 ln u) for u in (0, 1] in steps of 2^-31. */
INLINE float radius_f4(uint word) {
  const float u = (float)(int)(word >> 1) * 0x1p-31f + 0x1p-32f;
  /* u = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2) */
  const int bits = as_int(u);
  const int e = (bits - 0x3F3504F3) >> 23;
  const float f = as_float(bits - e * 0x800000) - 1.0f;
  /* ln(1 + f) = f - f^2/2 + f^3 p(f), p fitted to the least greatest relative error (6e-9) */
  float p = -0.07634493f;
  p = p * f + 0.12761575f;
  p = p * f + -0.13160183f;
  p = p * f + 0.14201759f;
  p = p * f + -0.16623357f;
  p = p * f + 0.20001227f;
  p = p * f + -0.2500082f;
  p = p * f + 0.3333333f;
  p = f + f * f * (f * p - 0.5f);
  /* ln 2 in two parts, the first with so few bits that e times it is exact */
  p = ((float)e * -2.12194440e-4f + p) + (float)e * 0.693359375f;
  return SQRT_F4(-2.0f * p);
}

typedef struct {
  float first, second;
} pair_f4;

/* radius * (cos, sin)(2 pi word / 2^32): quarter turns by exchange and sign, the rest by Taylor series. */
INLINE pair_f4 normal_f4(uint radius_word, uint angle_word) {
  const float radius = radius_f4(radius_word);
  const uint quarter = (angle_word + 0x20000000u) >> 30;
  const float x = (float)(int)(angle_word - (quarter << 30)) * 1.4629180792671596e-9f; /* pi/2 / 2^30 */
  const float xx = x * x;
  float p = 2.755731922398589e-6f; /* 1 / 9! */
  p = p * xx + -1.984126984126984e-4f;
  p = p * xx + 8.333333333333333e-3f;
  p = p * xx + -1.666666666666667e-1f;
  const float sine = x + x * xx * p;
  p = 2.480158730158730e-5f; /* 1 / 8! */
  p = p * xx + -1.388888888888889e-3f;
  p = p * xx + 4.166666666666667e-2f;
  p = p * xx + -0.5f;
  const float cosine = 1.0f + xx * p;
  const uint first = (quarter & 1u) != 0u ? as_uint(sine) : as_uint(cosine);
  const uint second = (quarter & 1u) != 0u ? as_uint(cosine) : as_uint(sine);
  pair_f4 pair;
  pair.first = radius * as_float(first ^ (((quarter + 1u) & 2u) << 30));
  pair.second = radius * as_float(second ^ ((quarter & 2u) << 30));
  return pair;
}

#if HAVE_F8
/* ---- double precision: two words give one uniform number, four words give two normal ones ---- */

/* [0, 1) in steps of 2^-53. */
INLINE double uniform_f8(uint high, uint low) {
  return ((double)(int)(high >> 5) * 67108864.0 + (double)(int)(low >> 6)) * 0x1p-53;
}

/* sqrt(-2 ln u) for u in (0, 1) in steps of 2^-52. */
INLINE double radius_f8(uint high, uint low) {
  const ulong word = (ulong)high << 32 | low;
  const double u = (as_double(word >> 12 | 0x3FF0000000000000ul) - 1.0) + 0x1p-53;
  const long bits = as_long(u);
  const int e = ((int)(bits >> 32) - 0x3FE6A09E) >> 20;
  const double f = as_double(bits - (long)e * 0x10000000000000l) - 1.0;
  /* ln(1 + f) = 2 artanh(s), s = f / (2 + f) */
  const double s = f / (2.0 + f);
  const double ss = s * s;
  double p = 1.0 / 21.0;
  p = p * ss + 1.0 / 19.0;
  p = p * ss + 1.0 / 17.0;
  p = p * ss + 1.0 / 15.0;
  p = p * ss + 1.0 / 13.0;
  p = p * ss + 1.0 / 11.0;
  p = p * ss + 1.0 / 9.0;
  p = p * ss + 1.0 / 7.0;
  p = p * ss + 1.0 / 5.0;
  p = p * ss + 1.0 / 3.0;
  p = 2.0 * s + 2.0 * s * (ss * p);
  p = ((double)e * 1.90821492927058770002e-10 + p) + (double)e * 6.93147180369123816490e-01;
  return SQRT_F8(-2.0 * p);
}

typedef struct {
  double first, second;
} pair_f8;

INLINE pair_f8 normal_f8(uint radius_high, uint radius_low, uint angle_high, uint angle_low) {
  const double radius = radius_f8(radius_high, radius_low);
  const ulong word = (ulong)angle_high << 32 | angle_low;
  const uint quarter = (uint)((word + 0x2000000000000000ul) >> 62);
  /* The rest of the angle, -2^50 to 2^50, converted by adding it to the bits of 1.5 * 2^52. */
  const long rest = (long)(word - ((ulong)quarter << 62)) >> 11;
  const double x = (as_double(rest + 0x4338000000000000l) - 6755399441055744.0) * 6.975736996017264e-16; /* pi/2 / 2^51 */
  const double xx = x * x;
  double p = 1.0 / 355687428096000.0; /* 17! */
  p = p * xx + -1.0 / 1307674368000.0;
  p = p * xx + 1.0 / 6227020800.0;
  p = p * xx + -1.0 / 39916800.0;
  p = p * xx + 1.0 / 362880.0;
  p = p * xx + -1.0 / 5040.0;
  p = p * xx + 1.0 / 120.0;
  p = p * xx + -1.0 / 6.0;
  const double sine = x + x * xx * p;
  p = 1.0 / 20922789888000.0; /* 16! */
  p = p * xx + -1.0 / 87178291200.0;
  p = p * xx + 1.0 / 479001600.0;
  p = p * xx + -1.0 / 3628800.0;
  p = p * xx + 1.0 / 40320.0;
  p = p * xx + -1.0 / 720.0;
  p = p * xx + 1.0 / 24.0;
  p = p * xx + -1.0 / 2.0;
  const double cosine = 1.0 + xx * p;
  const ulong first = (quarter & 1u) != 0u ? as_ulong(sine) : as_ulong(cosine);
  const ulong second = (quarter & 1u) != 0u ? as_ulong(cosine) : as_ulong(sine);
  pair_f8 pair;
  pair.first = radius * as_double(first ^ ((ulong)((quarter + 1u) & 2u) << 62));
  pair.second = radius * as_double(second ^ ((ulong)(quarter & 2u) << 62));
  return pair;
}
#endif
