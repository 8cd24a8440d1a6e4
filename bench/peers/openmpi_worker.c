/* One rank of the Open MPI side of `paceline bench allreduce`.
 *
 * Speaks the protocol described in crates/cli/src/bench/protocol.rs. mpirun forwards standard input
 * to rank 0 only, so rank 0 reads the commands, broadcasts them, and answers for all ranks. It knows
 * nothing of the other contenders nor of how the answers are judged. */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Bounds of a command; the harness stays far below them. */
enum { MAX_TENSORS = 4096, MAX_ITERATIONS = 1000000 };

typedef struct {
    int iterations;
    int warmup;
    int tensors;
    long bytes[MAX_TENSORS];
} Command;

static int rank, ranks;

static void die(const char *why)
{
    fprintf(stderr, "rank %d: %s\n", rank, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
         + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Rank 0 only. Returns 0 at the end of the input or at `quit`. */
static int read_command(Command *command)
{
    static char *line;
    static size_t capacity;
    memset(command, 0, sizeof *command);
    if (getline(&line, &capacity, stdin) < 0)
        return 0;
    char *rest = NULL;
    char *word = strtok_r(line, " \n", &rest);
    if (word == NULL || strcmp(word, "allreduce") != 0)
        return 0;
    char *iterations = strtok_r(NULL, " \n", &rest);
    char *warmup = strtok_r(NULL, " \n", &rest);
    if (iterations == NULL || warmup == NULL)
        die("a command without iterations or warm-up");
    command->iterations = atoi(iterations);
    command->warmup = atoi(warmup);
    if (command->iterations < 1 || command->iterations > MAX_ITERATIONS || command->warmup < 0)
        die("a command with a wrong number of iterations");
    while ((word = strtok_r(NULL, " \n", &rest)) != NULL) {
        if (command->tensors == MAX_TENSORS)
            die("a command with too many tensors");
        command->bytes[command->tensors++] = atol(word);
    }
    if (command->tensors == 0)
        die("a command without tensors");
    return 1;
}

/* One tensor: the blocking call. Several: all in flight, then wait for all. */
static void all_reduce(float **buffers, const int *lengths, MPI_Request *requests, int tensors)
{
    if (tensors == 1) {
        MPI_Allreduce(MPI_IN_PLACE, buffers[0], lengths[0], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    }
    for (int t = 0; t < tensors; t++)
        MPI_Iallreduce(MPI_IN_PLACE, buffers[t], lengths[t], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                       &requests[t]);
    MPI_Waitall(tensors, requests, MPI_STATUSES_IGNORE);
}

/* Small integers times a rank's factor: their sum is exact in f32, in any order. */
static float pattern(int t, int i)
{
    return (float)((i + t) % 7 + 1);
}

static int sums_are_right(float **buffers, const int *lengths, MPI_Request *requests, int tensors)
{
    for (int t = 0; t < tensors; t++)
        for (int i = 0; i < lengths[t]; i++)
            buffers[t][i] = pattern(t, i) * (rank + 1);
    all_reduce(buffers, lengths, requests, tensors);
    float factor = ranks * (ranks + 1) / 2;
    int right = 1;
    for (int t = 0; t < tensors; t++)
        for (int i = 0; i < lengths[t]; i++)
            right &= buffers[t][i] == pattern(t, i) * factor;
    int all_right = 0;
    MPI_Allreduce(&right, &all_right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    return all_right;
}

static void measure(const Command *command)
{
    int tensors = command->tensors, iterations = command->iterations;
    float **buffers = calloc(tensors, sizeof *buffers);
    int *lengths = calloc(tensors, sizeof *lengths);
    MPI_Request *requests = calloc(tensors, sizeof *requests);
    int64_t *stamps = calloc(iterations + 1, sizeof *stamps);
    int64_t *latest = calloc(iterations + 1, sizeof *latest);
    if (!buffers || !lengths || !requests || !stamps || !latest)
        die("out of memory");
    long total = 0;
    for (int t = 0; t < tensors; t++) {
        lengths[t] = (int)(command->bytes[t] / (long)sizeof(float));
        /* Cache lines, as the allocators of the other contenders give. */
        if (posix_memalign((void **)&buffers[t], 64, lengths[t] * sizeof(float) + 64))
            die("out of memory");
        total += command->bytes[t];
    }

    int right = sums_are_right(buffers, lengths, requests, tensors);
    /* From here on the sums are reduced in place over and over: zeros neither overflow nor
       become denormal. */
    for (int t = 0; t < tensors; t++)
        memset(buffers[t], 0, lengths[t] * sizeof(float));
    for (int i = 0; i < command->warmup; i++)
        all_reduce(buffers, lengths, requests, tensors);

    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = cpu_seconds();
    stamps[0] = monotonic_ns();
    for (int i = 0; i < iterations; i++) {
        all_reduce(buffers, lengths, requests, tensors);
        stamps[i + 1] = monotonic_ns();
    }
    cpu = cpu_seconds() - cpu;

    double cpu_of_all = 0;
    MPI_Reduce(stamps, latest, iterations + 1, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&cpu, &cpu_of_all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"bytes\":%ld,\"cpu_seconds\":%.6f,\"check\":%s,\"stamps_ns\":[", total, cpu_of_all,
               right ? "true" : "false");
        for (int i = 0; i <= iterations; i++)
            printf("%s%lld", i ? "," : "", (long long)latest[i]);
        printf("]}\n");
        fflush(stdout);
    }
    for (int t = 0; t < tensors; t++)
        free(buffers[t]);
    free(buffers);
    free(lengths);
    free(requests);
    free(stamps);
    free(latest);
}

int main(int argc, char **argv)
{
    /* Nothing is left behind when mpirun is killed, not even a stopped rank. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    int pid = getpid();
    int *pids = calloc(ranks, sizeof *pids);
    Command *command = calloc(1, sizeof *command);
    if (!pids || !command)
        die("out of memory");
    MPI_Gather(&pid, 1, MPI_INT, pids, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        version[strcspn(version, ",\"\\\n")] = 0;
        printf("{\"about\":\"%s\",\"pids\":[", version);
        for (int r = 0; r < ranks; r++)
            printf("%s%d", r ? "," : "", pids[r]);
        printf("]}\n");
        fflush(stdout);
    }
    for (;;) {
        int more = rank == 0 ? read_command(command) : 0;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!more)
            break;
        MPI_Bcast(command, sizeof *command, MPI_BYTE, 0, MPI_COMM_WORLD);
        measure(command);
    }
    free(command);
    free(pids);
    MPI_Finalize();
    return 0;
}
