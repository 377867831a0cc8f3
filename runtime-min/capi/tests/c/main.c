/* Runs one case: CASE BUNDLE SCRATCH IDS LOGITS HIDDEN. Ends with 1 at the first check that fails. */
#include "check.h"

const estream_request EVERYTHING = {
    .size = sizeof(estream_request),
    .positions = ESTREAM_POSITIONS_ALL,
    .hidden = 1,
};

void check(int truth, const char *text, const char *file, int line)
{
    if (truth)
        return;
    char error[512] = "";
    estream_last_error(error, sizeof error, NULL);
    fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", file, line, text, error);
    exit(1);
}

void check_status(estream_status expected, estream_status got, const char *text, const char *file,
                  int line)
{
    if (expected != got)
        fprintf(stderr, "status %d, not %d\n", (int)got, (int)expected);
    check(expected == got, text, file, line);
}

void says(const char *part)
{
    char error[2048];
    STATUS(ESTREAM_OK, estream_last_error(error, sizeof error, NULL));
    if (!strstr(error, part))
        fprintf(stderr, "no \"%s\" in it\n", part);
    CHECK(strstr(error, part) != NULL);
}

void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

estream_options streamed(const char *schedule, size_t group)
{
    estream_options options = {.size = sizeof options, .schedule = schedule, .group = group};
    return options;
}

estream_runtime open_with(const struct given *given, const estream_options *options)
{
    estream_runtime runtime = 0;
    STATUS(ESTREAM_OK, estream_open(given->bundle, options, &runtime));
    CHECK(runtime != 0);
    return runtime;
}

static void same(const float *row, const float *expected, size_t len)
{
    CHECK(memcmp(row, expected, len * sizeof *row) == 0);
}

void same_row(const struct given *given, estream_runtime runtime, size_t position)
{
    float *row = malloc(given->vocab * sizeof *row);
    CHECK(row != NULL);
    STATUS(ESTREAM_OK, estream_logits(runtime, position, row, given->vocab, NULL));
    same(row, given->logits + position * given->vocab, given->vocab);
    STATUS(ESTREAM_OK, estream_hidden(runtime, position, row, given->width, NULL));
    same(row, given->hidden + position * given->width, given->width);
    free(row);
}

void same_rows(const struct given *given, estream_runtime runtime)
{
    for (size_t position = 0; position < given->count; position++)
        same_row(given, runtime, position);
}

uint32_t *long_prompt(estream_runtime runtime, size_t *count)
{
    estream_info info = {.size = sizeof info};
    STATUS(ESTREAM_OK, estream_model_info(runtime, &info));
    *count = info.context < 2048 ? (size_t)info.context : 2048;
    uint32_t *ids = malloc(*count * sizeof *ids);
    CHECK(ids != NULL);
    for (size_t i = 0; i < *count; i++)
        ids[i] = (uint32_t)(i * 7 % info.vocab);
    return ids;
}

static uint32_t *parse_ids(const char *text, size_t *count)
{
    uint32_t *ids = malloc((strlen(text) + 1) * sizeof *ids);
    CHECK(ids != NULL);
    *count = 0;
    for (char *end; *text; text = *end == ',' ? end + 1 : end) {
        ids[(*count)++] = (uint32_t)strtoul(text, &end, 10);
        CHECK(end != text);
    }
    return ids;
}

/* The elements of a safetensors file with one tensor of `rows` rows. */
static float *read_rows(const char *path, size_t rows, size_t *width)
{
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    uint64_t header;
    CHECK(fread(&header, sizeof header, 1, file) == 1);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    size_t bytes = (size_t)ftell(file) - 8 - (size_t)header;
    CHECK(bytes > 0 && bytes % (rows * sizeof(float)) == 0);
    *width = bytes / (rows * sizeof(float));
    float *elements = malloc(bytes);
    CHECK(elements != NULL);
    CHECK(fseek(file, 8 + (long)header, SEEK_SET) == 0);
    CHECK(fread(elements, 1, bytes, file) == bytes);
    fclose(file);
    return elements;
}

#define CASE(name) {#name, name}

static const struct {
    const char *name;
    test_case run;
} CASES[] = {
    CASE(results_are_those_of_estream_run),
    CASE(positions_may_be_listed_in_any_order),
    CASE(stats_are_printed),
    CASE(plans_are_checked_and_told),
    CASE(hot_requests_follow_the_hot_column),
    CASE(two_runtimes_work_at_once),
    CASE(requests_run_in_turn),
    CASE(another_thread_cancels),
    CASE(closing_ends_what_runs),
    CASE(a_budget_counts_results),
    CASE(handles_that_are_none),
    CASE(null_and_unaligned_pointers),
    CASE(small_buffers_stay_untouched),
    CASE(bundles_that_are_none),
    CASE(corrupt_experts_end_the_request_only),
    CASE(structs_of_other_versions),
    CASE(requests_that_cannot_be),
    CASE(lines_go_to_the_log),
};

int main(int argc, char **argv)
{
    CHECK(argc == 7);
    CHECK(estream_abi_version() == ESTREAM_ABI_VERSION);
    CHECK(strlen(estream_version()) >= 5);
    struct given given = {.bundle = argv[2], .scratch = argv[3]};
    given.ids = parse_ids(argv[4], &given.count);
    CHECK(given.count >= 8);
    given.logits = read_rows(argv[5], given.count, &given.vocab);
    given.hidden = read_rows(argv[6], given.count, &given.width);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(CASES[i].name, argv[1]) == 0) {
            CASES[i].run(&given);
            free(given.ids);
            free(given.logits);
            free(given.hidden);
            return 0;
        }
    }
    fprintf(stderr, "there is no case %s\n", argv[1]);
    return 1;
}
