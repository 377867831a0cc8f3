/* What works. */
#include "check.h"

void results_are_those_of_estream_run(const struct given *given)
{
    static const char *const SCHEDULES[] = {NULL,    "resident", "on-demand", "prefetch",
                                            "early", "compact",  "ahead"};
    for (size_t i = 0; i < sizeof SCHEDULES / sizeof *SCHEDULES; i++) {
        estream_options options = streamed(SCHEDULES[i], i % 3);
        options.threads = 1 + i % 2;
        options.verify = (uint32_t)(i % 3);
        estream_runtime runtime = open_with(given, &options);
        estream_info info = {.size = sizeof info};
        STATUS(ESTREAM_OK, estream_model_info(runtime, &info));
        CHECK(info.vocab == given->vocab && info.hidden_width == given->width);
        CHECK(info.threads == options.threads && info.context >= given->count);
        STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
        same_rows(given, runtime);
        STATUS(ESTREAM_OK, estream_close(runtime));
    }
    /* Neither options nor a request: the logits of the last position. */
    estream_runtime runtime = open_with(given, NULL);
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, NULL));
    float *row = malloc(given->vocab * sizeof *row);
    size_t last = given->count - 1, needed = 0;
    STATUS(ESTREAM_OK, estream_logits(runtime, last, row, given->vocab, &needed));
    CHECK(needed == given->vocab);
    CHECK(memcmp(row, given->logits + last * given->vocab, needed * sizeof *row) == 0);
    STATUS(ESTREAM_USAGE, estream_hidden(runtime, last, row, given->vocab, NULL));
    says("did not ask for hidden rows");
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, row, given->vocab, NULL));
    says("no results at position 0");
    free(row);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

void positions_may_be_listed_in_any_order(const struct given *given)
{
    estream_runtime runtime = open_with(given, NULL);
    size_t list[] = {5, 0, 7, 5, 3};
    for (size_t chunk = 0; chunk < 5; chunk++) {
        estream_request request = {
            .size = sizeof request,
            .positions = ESTREAM_POSITIONS_LIST,
            .list = list,
            .list_len = sizeof list / sizeof *list,
            .hidden = 1,
            .chunk = chunk,
        };
        STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &request));
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            same_row(given, runtime, list[i]);
        float element;
        STATUS(ESTREAM_USAGE, estream_logits(runtime, 4, &element, 1, NULL));
        says("no results at position 4");
    }
    STATUS(ESTREAM_OK, estream_close(runtime));
}

void stats_are_printed(const struct given *given)
{
    estream_options options = streamed("compact", 2);
    options.threads = 1;
    estream_runtime runtime = open_with(given, &options);
    char stats[8192];
    STATUS(ESTREAM_USAGE, estream_stats(runtime, stats, sizeof stats, NULL));
    says("no results");
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
    size_t needed = 0;
    STATUS(ESTREAM_OK, estream_stats(runtime, stats, sizeof stats, &needed));
    CHECK(needed == strlen(stats) + 1);
    puts(stats);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

/* The test has put plans into the bundle: "good", and "stranger" of another bundle. */
void plans_are_checked_and_told(const struct given *given)
{
    char told[8192];
    estream_options options = streamed("early", 2);
    estream_runtime runtime = open_with(given, &options);
    STATUS(ESTREAM_OK, estream_plan(runtime, NULL, 500, told, sizeof told, NULL));
    CHECK(strstr(told, "\"schedule\":\"early\",\"group\":2") && strstr(told, "memory_bytes"));
    STATUS(ESTREAM_OK, estream_plan(runtime, "good", 16, told, sizeof told, NULL));
    CHECK(strstr(told, "\"schedule\":\"on-demand\",\"group\":1") && strstr(told, "\"chunk\":null"));
    CHECK(strstr(told, "\"hot\":null"));
    STATUS(ESTREAM_OK, estream_plan(runtime, "good", 17, told, sizeof told, NULL));
    CHECK(strstr(told, "\"schedule\":\"compact\",\"group\":2") && strstr(told, "\"chunk\":5"));
    CHECK(!strstr(told, "memory_bytes"));
    STATUS(ESTREAM_INVALID, estream_plan(runtime, "stranger", 16, told, sizeof told, NULL));
    says("it was made for bundle");
    STATUS(ESTREAM_USAGE, estream_plan(runtime, "nobody", 16, told, sizeof told, NULL));
    says("does not exist");
    STATUS(ESTREAM_USAGE, estream_plan(runtime, "../good", 16, told, sizeof told, NULL));
    STATUS(ESTREAM_USAGE, estream_plan(runtime, "\xff", 16, told, sizeof told, NULL));
    says("plan is not UTF-8");
    STATUS(ESTREAM_USAGE, estream_plan(runtime, NULL, 0, told, sizeof told, NULL));
    says("tokens is 0");
    STATUS(ESTREAM_OK, estream_close(runtime));

    estream_options planned = {.size = sizeof planned, .plan = "good"};
    runtime = open_with(given, &planned);
    STATUS(ESTREAM_OK, estream_plan(runtime, NULL, 17, told, sizeof told, NULL));
    CHECK(strstr(told, "\"why\":\"plan good\"") && strstr(told, "\"chunk\":5"));
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
    same_rows(given, runtime);
    /* The prompt has more than 16 tokens, and the plan cuts those into fives. */
    CHECK(given->count > 16);
    STATUS(ESTREAM_OK, estream_stats(runtime, told, sizeof told, NULL));
    char chunks[32];
    snprintf(chunks, sizeof chunks, "\"chunks\":%zu,", (given->count + 4) / 5);
    CHECK(strstr(told, chunks));
    STATUS(ESTREAM_OK, estream_close(runtime));
    planned.banks = 2;
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &planned, &runtime));
    says("use one or the others");
}

static void stats_say(estream_runtime runtime, const char *part)
{
    char stats[8192];
    STATUS(ESTREAM_OK, estream_stats(runtime, stats, sizeof stats, NULL));
    if (!strstr(stats, part))
        fprintf(stderr, "no %s in %s\n", part, stats);
    CHECK(strstr(stats, part) != NULL);
}

/* The test has put plans into the bundle: "heated", and "impossible" when hot. */
void hot_requests_follow_the_hot_column(const struct given *given)
{
    char told[8192];
    estream_options options = {.size = sizeof options, .plan = "impossible"};
    estream_runtime runtime;
    STATUS(ESTREAM_INVALID, estream_open(given->bundle, &options, &runtime));
    says("row 1: hot: group (G) is 0");
    options.plan = "heated";
    runtime = open_with(given, &options);
    STATUS(ESTREAM_OK, estream_plan(runtime, NULL, given->count, told, sizeof told, NULL));
    CHECK(strstr(told, "\"stream\":{\"schedule\":\"compact\",\"group\":1,"));
    CHECK(strstr(told, "\"hot\":{\"schedule\":\"early\",\"group\":4,"));
    for (size_t hot = 0; hot < 4; hot++) {
        estream_request request = EVERYTHING;
        request.hot = hot % 2 * hot;
        STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &request));
        same_rows(given, runtime);
        stats_say(runtime, hot % 2 ? "\"schedule\":\"early\",\"group\":4" : "\"group\":1");
        stats_say(runtime, hot % 2 ? "\"hot\":true" : "\"hot\":false");
        stats_say(runtime, hot % 2 ? "\"plan\":\"plan heated, hot\"" : "\"plan\":\"plan heated\"");
    }
    /* A program that was made before there was such a member has other things there. */
    estream_request older = EVERYTHING;
    older.size = offsetof(estream_request, hot);
    older.hot = 1;
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &older));
    stats_say(runtime, "\"hot\":false");
    STATUS(ESTREAM_OK, estream_close(runtime));

    /* Without a column it changes nothing. */
    runtime = open_with(given, NULL);
    estream_request request = EVERYTHING;
    request.hot = 1;
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &request));
    same_rows(given, runtime);
    stats_say(runtime, "no hot column");
    STATUS(ESTREAM_OK, estream_close(runtime));
}

struct worker {
    const struct given *given;
    estream_runtime runtime;
    /* For closing_ends_what_runs. */
    const uint32_t *ids;
    size_t count;
    pthread_t thread;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    const struct given *given = worker->given;
    for (int turn = 0; turn < 5; turn++) {
        STATUS(ESTREAM_OK, estream_prefill(worker->runtime, given->ids, given->count, &EVERYTHING));
        same_rows(given, worker->runtime);
    }
    return NULL;
}

void two_runtimes_work_at_once(const struct given *given)
{
    estream_options options[2] = {streamed("resident", 0), streamed("ahead", 1)};
    struct worker workers[2];
    for (int i = 0; i < 2; i++) {
        workers[i].given = given;
        workers[i].runtime = open_with(given, &options[i]);
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    CHECK(workers[0].runtime != workers[1].runtime);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    /* The end of one is not the other's. */
    STATUS(ESTREAM_OK, estream_close(workers[0].runtime));
    same_rows(given, workers[1].runtime);
    STATUS(ESTREAM_OK, estream_close(workers[1].runtime));
}

void requests_run_in_turn(const struct given *given)
{
    estream_runtime runtime = open_with(given, NULL);
    float element;
    for (size_t count = 1; count <= given->count; count += 5) {
        STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, count, &EVERYTHING));
        /* A position sees none after it, so the rows of a shorter prompt are the same. */
        for (size_t position = 0; position < count; position++)
            same_row(given, runtime, position);
        STATUS(ESTREAM_USAGE, estream_logits(runtime, count, &element, 1, NULL));
    }
    uint32_t unknown[] = {0, (uint32_t)given->vocab};
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, unknown, 2, NULL));
    says("token 1 of the prompt");
    /* What failed left no results, neither its own nor those before. */
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, &element, 1, NULL));
    says("no results");
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
    same_rows(given, runtime);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

static void *cancel_soon(void *argument)
{
    estream_runtime runtime = *(estream_runtime *)argument;
    estream_status status;
    while ((status = estream_cancel(runtime)) == ESTREAM_NO)
        pause_ms(1);
    STATUS(ESTREAM_OK, status);
    return NULL;
}

void another_thread_cancels(const struct given *given)
{
    static const char *const SCHEDULES[] = {"resident", "ahead"};
    for (int i = 0; i < 2; i++) {
        estream_options options = streamed(SCHEDULES[i], 1);
        estream_runtime runtime = open_with(given, &options);
        STATUS(ESTREAM_NO, estream_cancel(runtime));
        says("no request runs");
        size_t count;
        uint32_t *ids = long_prompt(runtime, &count);
        estream_request request = EVERYTHING;
        request.chunk = 1;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, cancel_soon, &runtime) == 0);
        STATUS(ESTREAM_CANCELLED, estream_prefill(runtime, ids, count, &request));
        says("cancelled");
        CHECK(pthread_join(thread, NULL) == 0);
        /* The next request is not concerned. */
        STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
        same_rows(given, runtime);
        free(ids);
        STATUS(ESTREAM_OK, estream_close(runtime));
    }
}

static void *run_until_closed(void *argument)
{
    struct worker *worker = argument;
    estream_request request = EVERYTHING;
    request.chunk = 1;
    estream_status status;
    do
        status = estream_prefill(worker->runtime, worker->ids, worker->count, &request);
    while (status == ESTREAM_OK);
    CHECK(status == ESTREAM_CANCELLED || status == ESTREAM_USAGE);
    STATUS(ESTREAM_USAGE, estream_prefill(worker->runtime, worker->given->ids, 1, NULL));
    return NULL;
}

void closing_ends_what_runs(const struct given *given)
{
    struct worker workers[3];
    estream_runtime runtime = open_with(given, NULL);
    size_t count;
    uint32_t *ids = long_prompt(runtime, &count);
    for (int i = 0; i < 3; i++) {
        workers[i] = (struct worker){.given = given, .runtime = runtime, .ids = ids, .count = count};
        CHECK(pthread_create(&workers[i].thread, NULL, run_until_closed, &workers[i]) == 0);
    }
    pause_ms(100);
    STATUS(ESTREAM_OK, estream_close(runtime));
    STATUS(ESTREAM_USAGE, estream_close(runtime));
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    free(ids);
}

void a_budget_counts_results(const struct given *given)
{
    estream_options options = streamed("compact", 1);
    options.threads = 1;
    options.expected_tokens = given->count;
    options.budget_bytes = 1000;
    estream_runtime runtime = 1;
    STATUS(ESTREAM_CANNOT_RUN, estream_open(given->bundle, &options, &runtime));
    CHECK(runtime == 0);
    says("more than the budget of 1000");

    /* As many tokens as the model takes, so that all results are larger than what the process may
     * have grown by when it opens a bundle for the second time. */
    options.budget_bytes = 0;
    runtime = open_with(given, &options);
    size_t count;
    uint32_t *ids = long_prompt(runtime, &count);
    char told[8192];
    STATUS(ESTREAM_OK, estream_plan(runtime, NULL, count, told, sizeof told, NULL));
    const char *member = strstr(told, "\"memory_bytes\":");
    CHECK(member != NULL);
    uint64_t ceiling = strtoull(member + strlen("\"memory_bytes\":"), NULL, 10);
    STATUS(ESTREAM_OK, estream_close(runtime));

    uint64_t results = count * (given->vocab + given->width) * sizeof(float);
    CHECK(results > (uint64_t)4 << 20);
    options.budget_bytes = ceiling + results / 2;
    runtime = open_with(given, &options);
    STATUS(ESTREAM_CANNOT_RUN, estream_prefill(runtime, ids, count, &EVERYTHING));
    says("and its results");
    STATUS(ESTREAM_OK, estream_prefill(runtime, ids, count, NULL));
    free(ids);
    STATUS(ESTREAM_OK, estream_close(runtime));
}
