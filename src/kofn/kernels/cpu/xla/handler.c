/* Rows of a call from XLA, dealt out to threads of XLA's own pool, without Python's lock.

   A handler never waits for a thread that has not begun: all of the pool may be handlers. It works
   itself until no row is left. A task that starts later finds nothing to do, and the memory that it
   reads is freed by whoever is last.

   `layout.h` is made of the layout modules beside this file when the library is built: CALL_… are
   the names of xla/layout.py, ROWS_… those of rows/layout.py, and so on. */

#include <stdint.h>

#include "layout.h"
#include "xla/ffi/api/c_api.h"

#ifdef _WIN32
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

typedef int64_t Word;
typedef void Run(Word job, Word own, double alpha, Word leads);
typedef Word Assist(Word own);
typedef Word Finish(Word at);
typedef void *Calloc(size_t count, size_t size);
typedef void Free(void *block);

/* What Python tells the handler: then no address is in a compiled program. */
PUBLIC Word kofn_xla_table[CALL_TABLE];

static Word *function_at(Word place) { return (Word *)kofn_xla_table[place]; }

static const void *argument(const XLA_FFI_CallFrame *frame, Word i) {
  return ((const XLA_FFI_Buffer *)frame->args.args[i])->data;
}

static Word given(const XLA_FFI_CallFrame *frame, Word i) { return (Word)argument(frame, i); }

static Word found(const XLA_FFI_CallFrame *frame, Word i) {
  return (Word)((const XLA_FFI_Buffer *)frame->rets.rets[i])->data;
}

static XLA_FFI_Error *error(const XLA_FFI_CallFrame *frame, Word message) {
  XLA_FFI_Error_Create_Args args = {0};
  args.struct_size = sizeof args;
  args.message = (const char *)kofn_xla_table[message];
  args.errc = XLA_FFI_Error_Code_INTERNAL;
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* Whether a call of XLA's did; lets go of its error. */
static int succeeded(const XLA_FFI_CallFrame *frame, XLA_FFI_Error *problem) {
  if (problem == 0) return 1;
  XLA_FFI_Error_Destroy_Args args = {0};
  args.struct_size = sizeof args;
  args.error = problem;
  frame->api->XLA_FFI_Error_Destroy(&args);
  return 0;
}

/* How many threads XLA's pool has; 1 if there is none. */
static Word threads(const XLA_FFI_CallFrame *frame) {
  int64_t count = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {0};
  args.struct_size = sizeof args;
  args.ctx = frame->ctx;
  args.num_threads = &count;
  int known = succeeded(frame, frame->api->XLA_FFI_ThreadPool_NumThreads(&args));
  return known && count > 1 ? count : 1;
}

/* Have a thread of XLA's pool call `task` with `data`, some time; whether one will. */
static int schedule(const XLA_FFI_CallFrame *frame, XLA_FFI_Task *task, void *data) {
  XLA_FFI_ThreadPool_Schedule_Args args = {0};
  args.struct_size = sizeof args;
  args.ctx = frame->ctx;
  args.task = task;
  args.data = data;
  return succeeded(frame, frame->api->XLA_FFI_ThreadPool_Schedule(&args));
}

/* Free the memory of a call if nobody else may read it. */
static void release(Word *block) {
  if (__atomic_fetch_sub(&block[CALL_REFERENCES], 1, __ATOMIC_SEQ_CST) == 1)
    ((Free *)function_at(CALL_FREE))(block);
}

/* A thread other than the caller's has no more to do with a call. */
static void done(const Word *ticket) {
  if (ticket[CALL_LEADS] == 0) release((Word *)ticket[CALL_BLOCK]);
}

/* A thread's share of rows, or of sums of k-subsets. */
static void on_rows(void *data) {
  const Word *ticket = data;
  Word *block = (Word *)ticket[CALL_BLOCK];
  double alpha = *(double *)&block[CALL_ALPHA];
  ((Run *)ticket[CALL_CODE])((Word)&block[CALL_JOB], ticket[CALL_OWN], alpha, ticket[CALL_LEADS]);
  done(ticket);
}

/* Help whoever solves long rows. */
static void on_long_rows(void *data) {
  const Word *ticket = data;
  ((Assist *)ticket[CALL_CODE])(ticket[CALL_OWN]);
  done(ticket);
}

static int fills(Word task) { return task == CALL_FILL_SINGLE || task == CALL_FILL_DOUBLE; }

static int of_knapsack(Word task) {
  return fills(task) || task == CALL_KNAPSACK || task == CALL_KNAPSACK_BACK;
}

static int of_rows(Word task) {
  return task == CALL_FORWARD || task == CALL_AFTER || task == CALL_COMPARE || task == CALL_LOGS ||
         task == CALL_AT_THETA;
}

/* Write the arrays of rows to their job; they stand as adapters/jax/operators.py has them. */
static void fill_rows(const XLA_FFI_CallFrame *frame, const Word *plan, Word *job) {
  Word last = frame->args.size - 1, results = frame->rets.size;
  job[ROWS_X] = given(frame, 0);
  job[ROWS_K] = given(frame, 1);
  job[ROWS_TEMPERATURE] = given(frame, 2);
  job[ROWS_ALPHA] = plan[CALL_ALPHAS] ? given(frame, last) : 0;
  job[ROWS_THREE] = plan[CALL_OF_ALPHA] ? found(frame, results - 1) : 0;
  if (plan[CALL_TASK] == CALL_FORWARD) {
    job[ROWS_HI] = found(frame, 0);
    job[ROWS_LO] = found(frame, 1);
    job[ROWS_OUT] = results > 2 ? found(frame, 2) : 0;
    return;
  }
  Word sixth = given(frame, 5);
  int likely = plan[CALL_SIXTH] == CALL_LIKELY;
  job[ROWS_HI] = given(frame, 3);
  job[ROWS_LO] = given(frame, 4);
  job[ROWS_G] = plan[CALL_SIXTH] == CALL_ENTRIES ? sixth : 0;
  job[ROWS_LABELS] = plan[CALL_SIXTH] == CALL_LABELS || likely ? sixth : 0;
  job[ROWS_LIKELY] = likely;
  job[ROWS_OUT] = found(frame, 0);
  if (results > 1) {
    job[ROWS_ONE] = found(frame, 1);
    job[ROWS_TWO] = found(frame, 2);
  }
}

/* The same of rows of n with costs; they stand as operations/knapsack.py has them. */
static void fill_knapsack(const XLA_FFI_CallFrame *frame, const Word *plan, Word n, Word *job) {
  Word results = frame->rets.size;
  job[ROWS_X] = given(frame, 0);
  job[KNAPSACK_COSTS] = given(frame, 1);
  job[KNAPSACK_APART] = n * plan[CALL_SIZE];
  job[ROWS_K] = given(frame, 2);
  job[ROWS_TEMPERATURE] = given(frame, 3);
  if (fills(plan[CALL_TASK])) {
    job[ROWS_HI] = found(frame, 0);
    job[ROWS_OUT] = found(frame, 1);
    return;
  }
  if (plan[CALL_TASK] == CALL_KNAPSACK) {
    job[ROWS_HI] = found(frame, 0);
    job[ROWS_LO] = found(frame, 1);
    job[ROWS_OUT] = results > 2 ? found(frame, 2) : 0;
    return;
  }
  job[ROWS_HI] = given(frame, 4);
  job[ROWS_LO] = given(frame, 5);
  job[ROWS_G] = given(frame, 6);
  job[ROWS_OUT] = found(frame, 0);
  job[ROWS_ONE] = found(frame, 1);
  job[ROWS_TWO] = found(frame, 2);
  job[KNAPSACK_IN_COSTS] = results > 3 ? found(frame, 3) : 0;
}

/* Write the job of k-subsets of n; the buffers stand as subsets/jax_marginals.py has them. */
static void fill_sums(const XLA_FFI_CallFrame *frame, const Word *plan, Word n, Word *job) {
  Word last = frame->args.size - 1;
  job[SUBSETS_N] = n;
  job[SUBSETS_SIZE] = plan[CALL_SIZE];
  job[SUBSETS_WHAT] = plan[CALL_KIND];
  job[SUBSETS_Y] = given(frame, 0);
  job[SUBSETS_K] = given(frame, 1);
  job[SUBSETS_HI] = given(frame, 2);
  job[SUBSETS_LO] = given(frame, 3);
  job[SUBSETS_V] = given(frame, last > 3 ? last : 0);
  job[SUBSETS_OUT] = found(frame, 0);
}

static XLA_FFI_Error *deal(const XLA_FFI_CallFrame *frame, const Word *plan, Word count, Word n) {
  Word task = plan[CALL_TASK];
  int prices = of_knapsack(task), rows = prices || of_rows(task);
  Word crew = n * count < plan[CALL_ALONE] ? 1 : threads(frame);
  int shared = rows && crew > count && n > RUNTIME_PART && !fills(task);
  Word chunks = (count + plan[CALL_CHUNK] - 1) / plan[CALL_CHUNK];
  if (!shared && crew > chunks) crew = chunks;
  Word head = 8 * (CALL_TICKETS + CALL_TICKET * crew);
  head = (head + RUNTIME_REGISTER - 1) / RUNTIME_REGISTER * RUNTIME_REGISTER;
  Word size = head + RUNTIME_REGISTER + 8 * crew * plan[CALL_WIDTH];
  Word *block = ((Calloc *)function_at(CALL_CALLOC))(1, (size_t)size);
  if (block == 0) return error(frame, CALL_MEMORY);
  Word memory = (Word)block + head;
  memory = (memory + RUNTIME_REGISTER - 1) / RUNTIME_REGISTER * RUNTIME_REGISTER;
  block[CALL_REFERENCES] = 1;
  const XLA_FFI_Scalar *alpha = frame->attrs.attrs[CALL_ALPHA_AT];
  *(double *)&block[CALL_ALPHA] = *(const double *)alpha->value;
  Word *job = &block[CALL_JOB], team = shared ? memory + 8 * plan[CALL_ROOM] : 0;
  job[RUNTIME_COUNT] = count;
  job[RUNTIME_CHUNK] = plan[CALL_CHUNK];
  if (rows) {
    job[ROWS_TOGETHER] = plan[CALL_GROUP];
    job[ROWS_N] = n;
    job[ROWS_SIZE] = plan[CALL_SIZE];
    job[ROWS_KIND] = plan[CALL_KIND];
    job[ROWS_TEAM] = team;
    job[ROWS_PASSES] = kofn_xla_table[plan[CALL_SLOT]];
  }
  if (prices)
    fill_knapsack(frame, plan, n, job);
  else if (rows)
    fill_rows(frame, plan, job);
  else
    fill_sums(frame, plan, n, job);
  for (Word i = 0; i < crew; i++) {
    Word *ticket = &block[CALL_TICKETS + CALL_TICKET * i];
    int helps = shared && i > 0;
    ticket[CALL_BLOCK] = (Word)block;
    ticket[CALL_LEADS] = i == 0;
    ticket[CALL_CODE] = kofn_xla_table[CALL_RUN + (helps ? CALL_ASSIST : task)];
    ticket[CALL_OWN] = helps ? team : memory + 8 * plan[CALL_WIDTH] * i;
  }
  for (Word i = 1; i < crew; i++) {
    __atomic_fetch_add(&block[CALL_REFERENCES], 1, __ATOMIC_SEQ_CST);
    void *ticket = &block[CALL_TICKETS + CALL_TICKET * i];
    if (!schedule(frame, shared ? on_long_rows : on_rows, ticket))
      __atomic_fetch_sub(&block[CALL_REFERENCES], 1, __ATOMIC_SEQ_CST);
  }
  on_rows(&block[CALL_TICKETS]);
  XLA_FFI_Error *problem = 0;
  Finish *finish = (Finish *)function_at(CALL_FINISH + task);
  int lost = rows && finish != 0 && job[ROWS_GIVEN_UP] != 0;
  if (lost && finish((Word)&block[CALL_ALPHA]) != 0) problem = error(frame, CALL_FAILED);
  release(block);
  return problem;
}

/* Answer XLA's question which version of the interface this is.

   XLA refuses a minor version that is newer than its own, as that of the header may be, and one day
   the oldest ones: so this says XLA's own, down to that of jaxlib 0.7.0, which asks without saying
   its own, and up to the header's. All that is used here is the same in each; only XLA_FFI_Metadata
   has grown, by a last field for handlers that keep a state. */
static void tell_version(const XLA_FFI_CallFrame *frame, XLA_FFI_Extension_Base *extension) {
  enum { OLDEST = 1 };
  int minor = frame->api == 0 ? OLDEST : frame->api->api_version.minor_version;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  if (minor > XLA_FFI_API_MINOR) minor = XLA_FFI_API_MINOR;
  metadata->api_version.minor_version = minor < OLDEST ? OLDEST : minor;
  metadata->traits = 0;
}

/* Answer a call from XLA: null, or its error. */
PUBLIC XLA_FFI_Error *kofn_xla_serve(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (extension != 0 && extension->type == XLA_FFI_Extension_Metadata) {
    tell_version(frame, extension);
    return 0;
  }
  const XLA_FFI_Array *numbers = frame->attrs.attrs[CALL_PLAN_AT];
  const Word *plan = numbers->data;
  if (kofn_xla_table[plan[CALL_SLOT]] == 0) return error(frame, CALL_MISSING);
  const XLA_FFI_Buffer *first = frame->args.args[0];
  Word count = 1, n = first->dims[first->rank - 1];
  for (Word axis = 0; axis < first->rank - 1; axis++) count *= first->dims[axis];
  return count == 0 || n == 0 ? 0 : deal(frame, plan, count, n);
}
