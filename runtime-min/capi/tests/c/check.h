/* What the cases share: checks that end the program, and what estream-run wrote. */
#ifndef CHECK_H
#define CHECK_H

#define _POSIX_C_SOURCE 200809L

#include "estream.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(truth) check((truth) ? 1 : 0, #truth, __FILE__, __LINE__)
#define STATUS(expected, call) check_status((expected), (call), #call, __FILE__, __LINE__)

void check(int truth, const char *text, const char *file, int line);
void check_status(estream_status expected, estream_status got, const char *text, const char *file,
                  int line);
/* That the last failure of this thread has `part` in its text. */
void says(const char *part);
void pause_ms(long ms);

/* What the test gave: a bundle, a prompt, and what estream-run computes for all positions of it. */
struct given {
    const char *bundle;
    const char *scratch;
    uint32_t *ids;
    size_t count;
    float *logits;
    float *hidden;
    size_t vocab;
    size_t width;
};

/* A request for every position, hidden rows too. */
extern const estream_request EVERYTHING;

estream_options streamed(const char *schedule, size_t group);
estream_runtime open_with(const struct given *given, const estream_options *options);
/* That the results at `position` are those of estream-run, bit for bit. */
void same_row(const struct given *given, estream_runtime runtime, size_t position);
void same_rows(const struct given *given, estream_runtime runtime);
/* A prompt that takes a while: as long as the model takes, in pieces of one token. */
uint32_t *long_prompt(estream_runtime runtime, size_t *count);

/* A case of cases_*.c. */
typedef void (*test_case)(const struct given *given);
void results_are_those_of_estream_run(const struct given *given);
void positions_may_be_listed_in_any_order(const struct given *given);
void stats_are_printed(const struct given *given);
void plans_are_checked_and_told(const struct given *given);
void hot_requests_follow_the_hot_column(const struct given *given);
void two_runtimes_work_at_once(const struct given *given);
void requests_run_in_turn(const struct given *given);
void another_thread_cancels(const struct given *given);
void closing_ends_what_runs(const struct given *given);
void a_budget_counts_results(const struct given *given);
void handles_that_are_none(const struct given *given);
void null_and_unaligned_pointers(const struct given *given);
void small_buffers_stay_untouched(const struct given *given);
void bundles_that_are_none(const struct given *given);
void corrupt_experts_end_the_request_only(const struct given *given);
void structs_of_other_versions(const struct given *given);
void requests_that_cannot_be(const struct given *given);
void lines_go_to_the_log(const struct given *given);

#endif
