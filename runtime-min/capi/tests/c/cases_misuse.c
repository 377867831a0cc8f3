/* What is refused. */
#include "check.h"

/* Every function that takes a handle refuses this one. */
static void refused(const struct given *given, estream_runtime handle)
{
    char text[64] = "untouched";
    float row[1] = {7};
    estream_info info = {.size = sizeof info};
    STATUS(ESTREAM_USAGE, estream_model_info(handle, &info));
    says("the handle is none");
    CHECK(info.vocab == 0);
    STATUS(ESTREAM_USAGE, estream_plan(handle, NULL, 1, text, sizeof text, NULL));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_prefill(handle, given->ids, given->count, NULL));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_logits(handle, 0, row, 1, NULL));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_hidden(handle, 0, row, 1, NULL));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_stats(handle, text, sizeof text, NULL));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_cancel(handle));
    says("the handle is none");
    STATUS(ESTREAM_USAGE, estream_close(handle));
    says("the handle is none");
    CHECK(strcmp(text, "untouched") == 0 && row[0] == 7);
}

void handles_that_are_none(const struct given *given)
{
    refused(given, 0);
    refused(given, 1);
    estream_runtime closed = open_with(given, NULL);
    STATUS(ESTREAM_OK, estream_close(closed));
    refused(given, closed);
    /* Its place is used again, its number is not. */
    estream_runtime runtime = open_with(given, NULL);
    CHECK(runtime != closed);
    refused(given, closed);
    for (int bit = 0; bit < 64; bit++)
        refused(given, runtime ^ (uint64_t)1 << bit);
    refused(given, UINT64_MAX);
    refused(given, (uint64_t)(uintptr_t)&runtime);
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
    same_rows(given, runtime);
    STATUS(ESTREAM_OK, estream_close(runtime));
    refused(given, runtime);
}

/* The address of something that begins one byte too late. */
#define AWRY(type, memory) ((type *)(void *)((memory) + 1))

void null_and_unaligned_pointers(const struct given *given)
{
    static uint64_t room[64];
    char *memory = (char *)room;
    estream_runtime runtime;
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, NULL, NULL));
    says("runtime is NULL");
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, NULL, AWRY(estream_runtime, memory)));
    says("runtime is not aligned");
    runtime = 1;
    STATUS(ESTREAM_USAGE, estream_open(NULL, NULL, &runtime));
    says("path is NULL");
    CHECK(runtime == 0);
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, AWRY(estream_options, memory), &runtime));
    says("options is not aligned");

    runtime = open_with(given, NULL);
    STATUS(ESTREAM_USAGE, estream_model_info(runtime, NULL));
    says("info is NULL");
    STATUS(ESTREAM_USAGE, estream_model_info(runtime, AWRY(estream_info, memory)));
    says("info is not aligned");
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, NULL, 3, NULL));
    says("ids is NULL");
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, 0, NULL));
    says("ids is empty");
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, SIZE_MAX, NULL));
    says("ids cannot have");
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, AWRY(uint32_t, memory), 3, NULL));
    says("ids is not aligned");
    STATUS(ESTREAM_USAGE,
           estream_prefill(runtime, given->ids, 3, AWRY(estream_request, memory)));
    says("request is not aligned");
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));

    STATUS(ESTREAM_USAGE, estream_plan(runtime, NULL, 1, NULL, 100, NULL));
    says("buffer is NULL");
    STATUS(ESTREAM_USAGE, estream_stats(runtime, NULL, 100, NULL));
    says("buffer is NULL");
    STATUS(ESTREAM_USAGE, estream_stats(runtime, memory, 512, AWRY(size_t, memory)));
    says("needed is not aligned");
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, NULL, given->vocab, NULL));
    says("buffer is NULL");
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, AWRY(float, memory), given->vocab, NULL));
    says("buffer is not aligned");
    STATUS(ESTREAM_USAGE, estream_hidden(runtime, 0, NULL, given->width, NULL));
    says("buffer is NULL");
    /* Reading the text of a failure is not one: the text stays. */
    STATUS(ESTREAM_USAGE, estream_last_error(NULL, 100, NULL));
    STATUS(ESTREAM_USAGE, estream_last_error(memory, 1, NULL));
    says("buffer is NULL");
    same_rows(given, runtime);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

void small_buffers_stay_untouched(const struct given *given)
{
    estream_runtime runtime = open_with(given, NULL);
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &EVERYTHING));
    size_t vocab = given->vocab, width = given->width, needed = 0;
    float *row = malloc(vocab * sizeof *row);
    row[0] = row[vocab - 1] = 7;
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, row, vocab - 1, &needed));
    says("are needed");
    CHECK(needed == vocab);
    STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, row, 0, NULL));
    STATUS(ESTREAM_USAGE, estream_hidden(runtime, 0, row, width - 1, &needed));
    CHECK(needed == width);
    CHECK(row[0] == 7 && row[vocab - 1] == 7);
    /* Just large enough: not one float more is written. */
    STATUS(ESTREAM_OK, estream_logits(runtime, 0, row, vocab, NULL));
    row[width] = 7;
    STATUS(ESTREAM_OK, estream_hidden(runtime, 0, row, width, NULL));
    CHECK(row[width] == 7);
    free(row);

    STATUS(ESTREAM_USAGE, estream_stats(runtime, NULL, 0, &needed));
    CHECK(needed > 100);
    char *text = malloc(needed + 1);
    text[0] = text[needed - 1] = text[needed] = 'x';
    STATUS(ESTREAM_USAGE, estream_stats(runtime, text, 0, NULL));
    STATUS(ESTREAM_USAGE, estream_stats(runtime, text, needed - 1, NULL));
    CHECK(text[0] == 'x' && text[needed - 1] == 'x');
    STATUS(ESTREAM_OK, estream_stats(runtime, text, needed, NULL));
    CHECK(strlen(text) == needed - 1 && text[needed] == 'x');
    text[0] = 'x';
    STATUS(ESTREAM_USAGE, estream_plan(runtime, NULL, 1, text, 5, &needed));
    CHECK(text[0] == 'x' && needed > 5);
    STATUS(ESTREAM_USAGE, estream_last_error(text, 5, &needed));
    CHECK(text[0] == 'x' && needed > 5);
    free(text);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

void bundles_that_are_none(const struct given *given)
{
    estream_runtime runtime = 1;
    STATUS(ESTREAM_USAGE, estream_open("no/such.estream", NULL, &runtime));
    says("no/such.estream: does not exist");
    CHECK(runtime == 0);
    STATUS(ESTREAM_USAGE, estream_open("", NULL, &runtime));
    STATUS(ESTREAM_INVALID, estream_open(given->scratch, NULL, &runtime));
    says("not a bundle");
    char path[4096];
    snprintf(path, sizeof path, "%s/manifest.json", given->bundle);
    STATUS(ESTREAM_INVALID, estream_open(path, NULL, &runtime));
    says("not a bundle");
    /* Bytes that are no UTF-8 are a path like another. */
    STATUS(ESTREAM_USAGE, estream_open("\xff\xfe", NULL, &runtime));
    says("does not exist");
}

/* The test has changed a byte of every record. */
void corrupt_experts_end_the_request_only(const struct given *given)
{
    estream_runtime runtime = 1;
    estream_options resident = streamed("resident", 0);
    STATUS(ESTREAM_INTEGRITY, estream_open(given->bundle, &resident, &runtime));
    CHECK(runtime == 0);
    runtime = open_with(given, NULL);
    for (int turn = 0; turn < 3; turn++) {
        STATUS(ESTREAM_INTEGRITY, estream_prefill(runtime, given->ids, given->count, NULL));
        says("has digest");
        float element;
        STATUS(ESTREAM_USAGE, estream_logits(runtime, 0, &element, 1, NULL));
    }
    STATUS(ESTREAM_OK, estream_close(runtime));
    estream_options unchecked = {.size = sizeof unchecked, .verify = ESTREAM_VERIFY_NEVER};
    runtime = open_with(given, &unchecked);
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, NULL));
    STATUS(ESTREAM_OK, estream_close(runtime));
}

struct later_request {
    estream_request known;
    uint64_t unknown[2];
};

struct later_info {
    estream_info known;
    uint64_t unknown, beyond;
};

void structs_of_other_versions(const struct given *given)
{
    estream_runtime runtime;
    estream_options options = {0};
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("set it to sizeof(estream_options)");
    options.size = (size_t)1 << 40;
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("set it to sizeof(estream_options)");

    /* An older one ends earlier: what comes after its end is not looked at. */
    options = streamed(NULL, 0);
    options.size = offsetof(estream_options, threads) + sizeof options.threads;
    options.threads = 1;
    options.schedule = "nonsense";
    options.verify = 99;
    runtime = open_with(given, &options);

    /* A later one may ask for nothing that this one does not know. */
    struct later_request request = {.known = EVERYTHING};
    request.known.size = sizeof request;
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &request.known));
    same_rows(given, runtime);
    request.unknown[1] = 1;
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request.known));
    says("does not know");

    /* Members of a later one are zeros, and nothing is written beyond an older one. */
    struct later_info info = {.unknown = 7, .beyond = 7};
    info.known.size = offsetof(struct later_info, beyond);
    STATUS(ESTREAM_OK, estream_model_info(runtime, &info.known));
    CHECK(info.known.vocab == given->vocab && info.known.threads == 1);
    CHECK(info.known.size == offsetof(struct later_info, beyond));
    CHECK(info.unknown == 0 && info.beyond == 7);
    estream_info older = {.size = offsetof(estream_info, hidden_width), .hidden_width = 7};
    STATUS(ESTREAM_OK, estream_model_info(runtime, &older));
    CHECK(older.vocab == given->vocab && older.hidden_width == 7);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

void requests_that_cannot_be(const struct given *given)
{
    estream_runtime runtime;
    estream_options options = streamed("sometimes", 0);
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("name one of resident, on-demand");
    options = streamed(NULL, 0);
    options.verify = 3;
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("verify cannot be 3");
    options = streamed(NULL, (size_t)1 << 60);
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("group (G) is");
    options = streamed(NULL, 0);
    options.depth = 9;
    STATUS(ESTREAM_USAGE, estream_open(given->bundle, &options, &runtime));
    says("depth (Q, at most B) is 9");
    options = streamed(NULL, 0);
    options.threads = SIZE_MAX;
    STATUS(ESTREAM_CANNOT_RUN, estream_open(given->bundle, &options, &runtime));
    says("threads");

    runtime = open_with(given, NULL);
    size_t list[] = {0, given->count};
    estream_request request = {.size = sizeof request, .list = list, .list_len = 2};
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("positions is not ESTREAM_POSITIONS_LIST");
    request.positions = ESTREAM_POSITIONS_LIST;
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("there is no position");
    request.list_len = 0;
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("list is empty");
    request.list_len = SIZE_MAX / 2;
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("list cannot have");
    request.list = NULL;
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("list is NULL");
    request = (estream_request){.size = sizeof request, .positions = 3};
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, given->ids, given->count, &request));
    says("positions cannot be 3");
    estream_info info = {.size = sizeof info};
    STATUS(ESTREAM_OK, estream_model_info(runtime, &info));
    uint32_t *ids = calloc(info.context + 1, sizeof *ids);
    STATUS(ESTREAM_USAGE, estream_prefill(runtime, ids, info.context + 1, NULL));
    says("shorten it");
    free(ids);
    STATUS(ESTREAM_OK, estream_close(runtime));
}

struct lines {
    char text[8192];
    int count[4];
    estream_runtime runtime;
    pthread_t thread;
};

static void keep(void *user, uint32_t level, const char *message)
{
    struct lines *lines = user;
    CHECK(level >= ESTREAM_LOG_ERROR && level <= ESTREAM_LOG_INFO);
    CHECK(pthread_equal(pthread_self(), lines->thread));
    lines->count[level]++;
    strncat(lines->text, message, sizeof lines->text - strlen(lines->text) - 2);
    strcat(lines->text, "\n");
    /* A log function that calls back would wait for itself: it is told so. */
    if (lines->runtime)
        CHECK(estream_stats(lines->runtime, NULL, 0, NULL) == ESTREAM_USAGE);
    estream_runtime another;
    CHECK(estream_open("nowhere", NULL, &another) == ESTREAM_USAGE);
    char error[512];
    CHECK(estream_last_error(error, sizeof error, NULL) == ESTREAM_OK);
    CHECK(strstr(error, "a log function called estream"));
}

void lines_go_to_the_log(const struct given *given)
{
    struct lines lines = {.thread = pthread_self()};
    estream_options options = {.size = sizeof options, .log = keep, .log_user = &lines};
    lines.runtime = open_with(given, &options);
    CHECK(strstr(lines.text, given->bundle) && strstr(lines.text, "opened bundle"));
    estream_request cut = {.size = sizeof cut, .chunk = (given->count + 1) / 2};
    STATUS(ESTREAM_OK, estream_prefill(lines.runtime, given->ids, given->count, &cut));
    CHECK(strstr(lines.text, "went through the experts 2 times"));
    CHECK(strstr(lines.text, "prefill of "));
    CHECK(lines.count[ESTREAM_LOG_ERROR] == 0 && lines.count[ESTREAM_LOG_WARNING] >= 1);
    STATUS(ESTREAM_USAGE, estream_prefill(lines.runtime, given->ids, given->count,
                                          &(estream_request){.size = sizeof cut, .list_len = 1}));
    uint32_t unknown = UINT32_MAX;
    STATUS(ESTREAM_USAGE, estream_prefill(lines.runtime, &unknown, 1, NULL));
    /* What the caller gets from estream_last_error is the failure, not what the log did. */
    says("token 0 of the prompt is 4294967295");
    CHECK(strstr(lines.text, "token 0 of the prompt is 4294967295"));
    CHECK(lines.count[ESTREAM_LOG_ERROR] == 1);
    STATUS(ESTREAM_OK, estream_close(lines.runtime));
    CHECK(strstr(lines.text, "closed\n"));

    /* Errors alone; one of opening is told too. */
    struct lines errors = {.thread = pthread_self()};
    options.log_user = &errors;
    options.log_level = ESTREAM_LOG_ERROR;
    estream_runtime runtime = open_with(given, &options);
    STATUS(ESTREAM_OK, estream_prefill(runtime, given->ids, given->count, &cut));
    STATUS(ESTREAM_OK, estream_close(runtime));
    CHECK(errors.text[0] == 0);
    STATUS(ESTREAM_USAGE, estream_open("nowhere", &options, &runtime));
    CHECK(strstr(errors.text, "nowhere: does not exist"));
    CHECK(errors.count[ESTREAM_LOG_ERROR] == 1);
}
