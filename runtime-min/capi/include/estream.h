/*
 * estream: the runtime for programs in C.
 *
 * Written by `cargo xtask header` from runtime-min/capi/src; change that.
 *
 * Every function that can fail returns an estream_status, and leaves a text for
 * estream_last_error of the thread that called it. A bug inside is ESTREAM_INTERNAL; nothing is
 * thrown or unwound into the caller.
 *
 * Ownership. Memory belongs to whoever allocated it: results are copied to the caller's
 * buffers, and estream keeps no pointer of the caller's after a call, except log and log_user
 * until estream_close returns. The one thing to give back is the handle.
 *
 * Threads. Any thread may use any handle. Calls on one handle wait for each other, except
 * estream_cancel; calls on different handles do not. The results of a handle are those of its last
 * request, whoever made it.
 *
 * Handles. One that is 0, closed, or made up is ESTREAM_USAGE, never undefined behaviour. A
 * child of fork must not use its parent's handles.
 *
 * Pointers. Null or unaligned ones, empty arrays and buffers that are too small are
 * ESTREAM_USAGE. That a pointer is good for the length beside it is the caller's promise, which
 * is what the sections "Safety" say.
 */

#ifndef ESTREAM_H
#define ESTREAM_H

#include <stddef.h>
#include <stdint.h>

// Version of this header. A library with the same version has everything in it; see
// `estream_abi_version`.
#define ESTREAM_ABI_VERSION 1

// Done.
#define ESTREAM_OK 0

// Done, and the answer is no: there was nothing to cancel.
#define ESTREAM_NO 1

// The call is wrong: a null pointer, a handle that is none, a buffer that is too small, a
// prompt that the model cannot have.
#define ESTREAM_USAGE 2

// This machine or this budget cannot do it.
#define ESTREAM_CANNOT_RUN 3

// The bundle or a plan is invalid or corrupt.
#define ESTREAM_INVALID 4

// The machine failed: permissions, a read error.
#define ESTREAM_IO 5

// Bytes do not have the digest that the bundle states.
#define ESTREAM_INTEGRITY 6

// A bug in estream. Close the handle.
#define ESTREAM_INTERNAL 70

// The request was cancelled: what a shell says of a program that was interrupted.
#define ESTREAM_CANCELLED 130

// Records are compared with their digests the first time they are read.
#define ESTREAM_VERIFY_FIRST_USE 0

// Each time they are read.
#define ESTREAM_VERIFY_ALWAYS 1

// Not at all.
#define ESTREAM_VERIFY_NEVER 2

// Results for the last position.
#define ESTREAM_POSITIONS_LAST 0

// Results for every position.
#define ESTREAM_POSITIONS_ALL 1

// Results for the positions in `list`.
#define ESTREAM_POSITIONS_LIST 2

// A call on the handle failed.
#define ESTREAM_LOG_ERROR 1

// Something is slower than it could be.
#define ESTREAM_LOG_WARNING 2

// What was done.
#define ESTREAM_LOG_INFO 3

// What a function says: one of `ESTREAM_OK` to `ESTREAM_CANCELLED`. The numbers are the exit codes of
// the estream programs.
typedef int32_t estream_status;

// Takes a line of a runtime's log: `user` is `log_user` of its options, `level` one of
// `ESTREAM_LOG_ERROR` to `ESTREAM_LOG_INFO`, `message` UTF-8 that is gone when the function returns.
//
// It is called on the thread that called estream, before that call returns, for one line of a
// runtime at a time. It must return: no exception, no `longjmp`. Calls of estream in it fail with
// `ESTREAM_USAGE`, `estream_last_error` excepted.
typedef void (*estream_log_fn)(void *user, uint32_t level, const char *message);

// How a runtime is opened. Zeros are defaults: set `size`, then what should differ. A later
// version may add members at the end; what is beyond `size` counts as zero.
typedef struct estream_options {
  // `sizeof(estream_options)`.
  size_t size;
  // Threads to compute with; 0 is as many as the machine has. Results do not depend on it.
  size_t threads;
  // Name of a plan in the bundle, or NULL. It says what the next four say.
  const char *plan;
  // `resident`, `on-demand`, `prefetch`, `early`, `compact` or `ahead`; NULL is `ahead`.
  const char *schedule;
  // G, experts a group; 0 is a quarter of a layer, but at most 8.
  size_t group;
  // Q, reads at a time; 0 is 2.
  size_t depth;
  // B, groups in memory; 0 is 3.
  size_t banks;
  // The most memory a request may take, weights and results included; 0 is no limit.
  uint64_t budget_bytes;
  // Tokens of the longest prompt to come, or 0: a budget that is too small for it is refused
  // before any weight is read. Results are not counted yet.
  size_t expected_tokens;
  // `chunk` of that request.
  size_t expected_chunk;
  // Takes the log, or NULL.
  estream_log_fn log;
  // The first argument of `log`; estream does not look at it.
  void *log_user;
  // The least important level to log; 0 is all.
  uint32_t log_level;
  // One of `ESTREAM_VERIFY_FIRST_USE` to `ESTREAM_VERIFY_NEVER`. Weights outside experts are
  // compared when they are read, which is once, unless it is the last.
  uint32_t verify;
} estream_options;

// A runtime: an open bundle with its weights, and the results of its last request. 0 is none, and
// a number that was closed is never given out again.
typedef uint64_t estream_runtime;

// Numbers of an open model.
typedef struct estream_info {
  // `sizeof(estream_info)`, set by the caller.
  size_t size;
  // Logits a position, and ids there are.
  size_t vocab;
  // Elements of a hidden row.
  size_t hidden_width;
  // Threads it computes with.
  size_t threads;
  // Tokens a prompt may have.
  uint64_t context;
} estream_info;

// What to compute for a prompt. Zeros are defaults, as for `estream_options`.
typedef struct estream_request {
  // `sizeof(estream_request)`.
  size_t size;
  // With `ESTREAM_POSITIONS_LIST`, positions in any order, counted from 0; else NULL.
  const size_t *list;
  // How many.
  size_t list_len;
  // Tokens that go through the model together; 0 is what the plan says, or all. Results do not
  // depend on it, memory does, and each chunk goes through the experts again.
  size_t chunk;
  // One of `ESTREAM_POSITIONS_LAST` to `ESTREAM_POSITIONS_LIST`.
  uint32_t positions;
  // Not 0 to keep the rows that the head reads too.
  uint32_t hidden;
  // Not 0 if the device is hot: experts are streamed as the plan says for that, where it says so; else
  // this changes nothing. Results do not depend on it.
  size_t hot;
} estream_request;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// `ESTREAM_ABI_VERSION` of the library that is loaded. A program that was made for a later one
// should not go on.
//
// Threads: any.
uint32_t estream_abi_version(void);

// Version of estream, as `0.1.0`.
//
// Memory: the string is estream's and stays as long as the library is loaded. Threads: any.
const char *estream_version(void);

// Copies the text of the last failure on the calling thread to `buffer`, empty if there was none.
// A call that succeeds leaves it as it was, and so does this one if it fails.
//
// Strings are copied like this everywhere: UTF-8 that ends with a NUL, for which `buffer` has
// `capacity` bytes. `needed`, unless NULL, gets the bytes of the string with its NUL, also if they
// are too many or `buffer` is NULL, which are `ESTREAM_USAGE` and leave `buffer` untouched.
//
// Memory: the copy is the caller's. Threads: any, each has its own text. May be called by a log
// function.
//
// # Safety
// `buffer` has `capacity` bytes, and nobody else uses them meanwhile.
estream_status estream_last_error(char *buffer, size_t capacity, size_t *needed);

// Opens the bundle in directory `path` and reads its weights, which can take seconds; `options`
// may be NULL for defaults. `runtime` gets a handle, or 0 if this fails. Any number of runtimes
// may be open, also of one bundle; they share nothing.
//
// Memory: the handle is the caller's to close. Strings and structs are used during the call alone,
// `log` and `log_user` until `estream_close` returns. The bundle's files stay open until then and
// must not be changed; no byte of them is trusted, so changing them is an error of a later call.
// Threads: any, several at once.
//
// # Safety
// `path` and the strings of `options` end with a NUL; `options->size` bytes of `options` can be
// read.
estream_status estream_open(const char *path,
                            const struct estream_options *options,
                            estream_runtime *runtime);

// Writes the numbers of the model to `info`, whose `size` the caller has set.
//
// Memory: `info` is the caller's. Threads: any; waits while another call uses the handle.
//
// # Safety
// `info->size` bytes of `info` can be written.
estream_status estream_model_info(estream_runtime handle, struct estream_info *info);

// Copies a JSON object to `buffer` that says how a prompt of `tokens` tokens would be run: `why`,
// `stream` (null if all experts stay in memory), `hot` (the same on a hot device; null if nothing is
// said of one), `chunk`, `arena_bytes`. If `plan` is NULL it is about the runtime as it was opened,
// and has `memory_bytes`; else about the plan of the bundle with that name, which is read and checked,
// and not used. Copies as `estream_last_error` does.
//
// Memory: the copy is the caller's; `plan` is used during the call alone. Threads: any; waits
// while another call uses the handle.
//
// # Safety
// `plan` ends with a NUL; `buffer` has `capacity` bytes.
estream_status estream_plan(estream_runtime handle,
                            const char *plan,
                            size_t tokens,
                            char *buffer,
                            size_t capacity,
                            size_t *needed);

// Runs the prompt of `count` token ids; `request` may be NULL for the logits of the last position.
// Requests of a runtime run in turn and use the same arena.
//
// Memory: the results are estream's, and stay until the next `estream_prefill` or `estream_close`
// of the handle; a request that fails leaves none. `ids` and `request` are used during the call
// alone. Threads: any; waits while another call uses the handle. Another thread can end it, see
// `estream_cancel`.
//
// # Safety
// `ids` has `count` elements, `request->list` `request->list_len`, and nobody changes them
// meanwhile; `request->size` bytes of `request` can be read.
estream_status estream_prefill(estream_runtime handle,
                               const uint32_t *ids,
                               size_t count,
                               const struct estream_request *request);

// Copies the logits at `position` of the last prompt, counted from 0, to `buffer`, which has room
// for `capacity` floats; there are `vocab` of them, which `needed` gets unless it is NULL. Too
// small a buffer is `ESTREAM_USAGE` and stays untouched; a position that was not asked for is
// `ESTREAM_USAGE` too.
//
// Memory: the copy is the caller's and outlives the handle. Threads: any; waits while another call
// uses the handle.
//
// # Safety
// `buffer` has room for `capacity` floats, and nobody else uses them meanwhile.
estream_status estream_logits(estream_runtime handle,
                              size_t position,
                              float *buffer,
                              size_t capacity,
                              size_t *needed);

// Copies the row that the head read at `position`, `hidden_width` floats, as `estream_logits`
// does. The request must have asked for it.
//
// Memory and threads: as `estream_logits`.
//
// # Safety
// As `estream_logits`.
estream_status estream_hidden(estream_runtime handle,
                              size_t position,
                              float *buffer,
                              size_t capacity,
                              size_t *needed);

// Copies a JSON object to `buffer` that says what the last request took: the members of `stats`
// that `estream-run --stats --json` prints, and `bundle`, `tokens`, `rows` and `result_bytes`.
// Copies as `estream_last_error` does.
//
// Memory: the copy is the caller's. Threads: any; waits while another call uses the handle.
//
// # Safety
// `buffer` has `capacity` bytes, and nobody else uses them meanwhile.
estream_status estream_stats(estream_runtime handle, char *buffer, size_t capacity, size_t *needed);

// Asks the request that runs to end, and does not wait for that: its `estream_prefill` returns
// `ESTREAM_CANCELLED` once the expert at work is done and reads under way have returned, or
// `ESTREAM_OK` if it was about to end. The next request is not concerned. `ESTREAM_NO` if none
// runs.
//
// Threads: any; never waits for another call.
estream_status estream_cancel(estream_runtime handle);

// Ends the request that runs as `estream_cancel` does, waits until it has ended, and frees
// everything.
//
// Memory: all of the handle's is freed, its files are closed, and the log function is not called
// again; copies stay the caller's. Threads: any; the handle is none for every thread from the
// start of this call, and calls that waited for it fail.
estream_status estream_close(estream_runtime handle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ESTREAM_H */
