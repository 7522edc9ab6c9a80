/* exp(x) for x <= 0, the same bits on every device.
 *
 * Read by two compilers: the OpenCL compiler (pair_forces.py, particle_cumulate.py) and C++ (cpp/kernels). Where a
 * macro is used, these must be defined:
 *   REAL, BITS                  the floating point type, or a vector of it, and the signed integers of the same size
 *   AS_REAL(bits), AS_BITS(x)   reinterpretations
 *   SPLAT(c)                    a REAL of constants
 * Only operations that IEEE 754 and OpenCL round correctly are used (+, -, *), never contracted into fused ones, so
 * both compilers get the same numbers. No branches: both vectorise it.
 *
 * x = n ln 2 + f with f between -ln(2)/2 and ln(2)/2: adding 1.5 * 2^23 (2^52) rounds x / ln 2 to the integer n and
 * leaves it in the last bits of the sum; n times the first part of ln 2 is exact. What would be smaller than the
 * smallest normal number is 0.
 */

/* The polynomial is fitted to the least greatest error (2e-10); the result is off by 1.1 units in the last place. */
#define EXP_F4(x, result)                                                                               \
  {                                                                                                     \
    const REAL exp_x = (x) < SPLAT(-87.0f) ? SPLAT(-87.0f) : (x);                                       \
    const REAL exp_shifted = exp_x * 1.44269504f + 12582912.0f;                                         \
    const REAL exp_n = exp_shifted - 12582912.0f;                                                       \
    const REAL exp_f = (exp_x - exp_n * 0.693359375f) - exp_n * -2.12194440e-4f;                        \
    REAL exp_p = exp_f * 1.98994195e-4f + 1.39337534e-3f;                                               \
    exp_p = exp_p * exp_f + 8.33329838e-3f;                                                             \
    exp_p = exp_p * exp_f + 4.16664630e-2f;                                                             \
    exp_p = exp_p * exp_f + 1.66666672e-1f;                                                             \
    exp_p = exp_p * exp_f + 0.5f;                                                                       \
    exp_p = exp_f * exp_f * exp_p + exp_f + 1.0f;                                                       \
    const REAL exp_scaled = AS_REAL(AS_BITS(exp_p) + (AS_BITS(exp_shifted) << 23));                     \
    result = (x) < SPLAT(-87.0f) ? SPLAT(0.0f) : exp_scaled;                                            \
  }

/* Taylor's series. */
#define EXP_F8(x, result)                                                                               \
  {                                                                                                     \
    const REAL exp_x = (x) < SPLAT(-708.0) ? SPLAT(-708.0) : (x);                                       \
    const REAL exp_shifted = exp_x * 1.4426950408889634 + 6755399441055744.0;                           \
    const REAL exp_n = exp_shifted - 6755399441055744.0;                                                \
    const REAL exp_f = (exp_x - exp_n * 6.93147180369123816490e-01) - exp_n * 1.90821492927058770002e-10;\
    REAL exp_p = exp_f * (1.0 / 6227020800.0) + 1.0 / 479001600.0;                                      \
    exp_p = exp_p * exp_f + 1.0 / 39916800.0;                                                           \
    exp_p = exp_p * exp_f + 1.0 / 3628800.0;                                                            \
    exp_p = exp_p * exp_f + 1.0 / 362880.0;                                                             \
    exp_p = exp_p * exp_f + 1.0 / 40320.0;                                                              \
    exp_p = exp_p * exp_f + 1.0 / 5040.0;                                                               \
    exp_p = exp_p * exp_f + 1.0 / 720.0;                                                                \
    exp_p = exp_p * exp_f + 1.0 / 120.0;                                                                \
    exp_p = exp_p * exp_f + 1.0 / 24.0;                                                                 \
    exp_p = exp_p * exp_f + 1.0 / 6.0;                                                                  \
    exp_p = exp_p * exp_f + 0.5;                                                                        \
    exp_p = exp_f * exp_f * exp_p + exp_f + 1.0;                                                        \
    const REAL exp_scaled = AS_REAL(AS_BITS(exp_p) + (AS_BITS(exp_shifted) << 52));                     \
    result = (x) < SPLAT(-708.0) ? SPLAT(0.0) : exp_scaled;                                             \
  }
