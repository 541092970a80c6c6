/* Which level of x86-64 the processor has and the system lets programs use: 1 to 4; 0 elsewhere. */

#include "functions.h"

#ifdef _WIN32
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

#ifdef __x86_64__

#include <cpuid.h>

enum { A, B, C, D };

/* Registers of a leaf of CPUID, all 0 where the processor has no such leaf. */
static void ask(unsigned leaf, unsigned registers[4]) {
  registers[A] = registers[B] = registers[C] = registers[D] = 0;
  if (__get_cpuid_max(leaf & 0x80000000u, 0) >= leaf)
    __cpuid_count(leaf, 0, registers[A], registers[B], registers[C], registers[D]);
}

/* Registers that the system saves when it changes programs. */
static unsigned saved(void) {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static int has(unsigned word, unsigned bits) { return (word & bits) == bits; }

#define BIT(i) (1u << (i))

PUBLIC int kofn_level(void) {
  unsigned first[4], seventh[4], extended[4];
  ask(1, first);
  ask(7, seventh);
  ask(0x80000001u, extended);
  /* SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT; SAHF */
  unsigned second_level = BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23);
  if (!has(first[C], second_level) || !has(extended[C], BIT(0))) return 1;
  /* FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT; the state of SSE and AVX */
  unsigned third_level = BIT(12) | BIT(22) | BIT(27) | BIT(28) | BIT(29);
  if (!has(first[C], third_level) || !has(seventh[B], BIT(3) | BIT(5) | BIT(8))) return 2;
  if (!has(extended[C], BIT(5)) || !has(saved(), BIT(1) | BIT(2))) return 2;
  /* AVX512F, DQ, CD, BW, VL; the state of AVX-512 */
  unsigned fourth_level = BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31);
  if (!has(seventh[B], fourth_level) || !has(saved(), BIT(5) | BIT(6) | BIT(7))) return 3;
  return 4;
}

#else

PUBLIC int kofn_level(void) { return 0; }

#endif

/* A digest of the files that the library was made of, the functions that it has, a line each with
   a digest of its own, one of what the handler is made of, and the levels. */
PUBLIC const char kofn_sources[] = KOFN_SOURCES;
PUBLIC const char kofn_handler[] = KOFN_HANDLER;
PUBLIC const char kofn_functions[] = KOFN_FUNCTIONS;
PUBLIC const char kofn_levels[] = KOFN_LEVELS;
