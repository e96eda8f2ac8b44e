// Measures MPI's own collectives as bench/collectives does ours, without Tessera: allocates once, and sums in whatever
// order the MPI chooses.
//
// usage: mpirun -n N mpi_collectives [MIB]...
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

struct Job {
  int rank = 0;
  int ranks = 1;
};

void measure(const Job& job, const char* name, std::size_t mebibytes, const std::function<void()>& collective) {
  std::vector<double> times;
  const std::size_t runs = std::clamp<std::size_t>(2000 / mebibytes, 7, 201) | 1;
  for (std::size_t i = 0; i < runs + 2; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = std::chrono::steady_clock::now();
    collective();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  times.erase(times.begin(), times.begin() + 2);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  if (job.rank == 0) std::printf("peer %d %s %zu %.4f\n", job.ranks, name, mebibytes, times[times.size() / 2]);
}

void measure_all(const Job& job, std::size_t mebibytes) {
  const std::size_t shard = (mebibytes << 20) / sizeof(float) / static_cast<std::size_t>(job.ranks);
  std::vector<float> data(shard * static_cast<std::size_t>(job.ranks), 1.0f);
  std::vector<float> result(std::max(shard, data.size()), 1.0f);
  const int count = static_cast<int>(shard);
  measure(job, "all-gather", mebibytes,
          [&] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data.data(), count, MPI_FLOAT, MPI_COMM_WORLD); });
  measure(job, "reduce-scatter", mebibytes,
          [&] { MPI_Reduce_scatter_block(data.data(), result.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  measure(job, "all-reduce", mebibytes, [&] {
    MPI_Allreduce(data.data(), result.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10));
    if (sizes.back() > 0) continue;
    const bool helps = std::strcmp(argv[i], "--help") == 0;
    if (!helps) std::fprintf(stderr, "error: \"%s\" is no number of MiB\n", argv[i]);
    std::fputs("usage: mpirun -n N mpi_collectives [MIB]...    what MPI's own collectives take (default: 1 16 256)\n",
               helps ? stdout : stderr);
    return helps ? 0 : 2;
  }
  MPI_Init(&argc, &argv);
  Job job;
  MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
  if (sizes.empty()) sizes = {1, 16, 256};
  for (const std::size_t mebibytes : sizes) measure_all(job, mebibytes);
  MPI_Finalize();
  return 0;
}
