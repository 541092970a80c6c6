/* Load a library of kofn's kernels and call one: for systems that have no Python to try it with.

       loaded LIBRARY

   The pass over a row that is called needs the system's library of mathematics. */

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define N 8

typedef void pass(int64_t x, int64_t g, int64_t out, int64_t n, int64_t sums, double anchor,
                  double per_t, double moved, double alpha, double rest);

int main(int count, char **arguments) {
  if (count != 2) return fprintf(stderr, "usage: loaded LIBRARY\n"), 2;
  void *library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*level)(void) = (int (*)(void))dlsym(library, "kofn_level");
  const char *levels = dlsym(library, "kofn_levels");
  if (!level || !levels) return fprintf(stderr, "%s\n", dlerror()), 1;

  double row[N] = {-1, 0.25, 1, 2, -3, 0.5, 7, -8}, tails = 0, upper = 0;
  for (int i = 0; i < N; i++) {
    double tail = erfc(fabs(row[i]) * sqrt(0.5)) / 2;
    tails += tail;
    if (row[i] > 0) upper += tail;
  }
  int tried = 0;
  for (int own = 2; own <= 4 && own <= level(); own++) {
    char name[80];
    snprintf(name, sizeof name, "kofn_rows_loops_first_evaluation_2_float64_v%d", own);
    pass *evaluate = (pass *)dlsym(library, name);
    if (!evaluate) return fprintf(stderr, "%s\n", dlerror()), 1;
    double out[N] = {0}, sums[8] = {0};
    evaluate((intptr_t)row, 0, (intptr_t)out, N, (intptr_t)sums, 0, 1, 0, 0, 0);
    if (fabs(sums[0] - tails) > 1e-14 || fabs(sums[1] - upper) > 1e-14)
      return fprintf(stderr, "v%d: %.17g and %.17g, not %.17g and %.17g\n", own, sums[0], sums[1],
                     tails, upper), 1;
    tried++;
  }
  printf("levels %s; tried %d\n", levels, tried);
  return tried ? 0 : 1;
}
