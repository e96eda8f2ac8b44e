// A program with an MPI of its own: it starts MPI, splits its processes into two jobs, trains in each beside its own
// messages, and ends MPI.
//
// usage: mpirun -n 4 mpi_own_communicator
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace {

using tessera::LaunchOptions;
using tessera::plan::WindowKind;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// The text of the UsageError, which it must be.
std::string refusal(const LaunchOptions& options) {
  try {
    tessera::launch(options, [](tessera::World&) {});
  } catch (const tessera::UsageError& error) {
    return error.what();
  }
  return "";
}

void require_refused(const LaunchOptions& options, const char* words) {
  require(refusal(options).find(words) != std::string::npos, words);
}

// One step of a weight that begins with 1, whose gradient is 1 on rank 0, 2 on rank 1 and so on.
void train(tessera::World& world) {
  tessera::Parameter weight({4}, tessera::Initial::ones());
  tessera::FullyShard model(world);
  tessera::Unit& unit = model.add_unit("unit", std::vector<tessera::NamedParameter>{{"weight", &weight}});
  model.finalize(tessera::Sgd{.learning_rate = 0.5f});
  model.within(unit, WindowKind::forward, [](tessera::Window&) {});
  model.within(unit, WindowKind::backward, [&](tessera::Window& window) {
    for (float& value : window.gradient(weight)) value = static_cast<float>(world.rank() + 1);
  });
  model.update();
  const float mean = static_cast<float>(world.size() + 1) / 2.0f;
  require(model.whole(weight) == std::vector<float>(4, 1.0f - 0.5f * mean),
          "the mean gradient of the communicator's ranks");
}

void run_job(MPI_Comm communicator) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  tessera::launch({.mpi_communicator = MPI_Comm_c2f(communicator)}, [&](tessera::World& world) {
    require(world.rank() == rank && world.size() == size, "ranks are those of the communicator");
    require(world.backend_name() == "mpi", "the backend is mpi");
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, communicator);
    require(sum == size * (size - 1) / 2, "the program's own messages go on beside the job's");
    train(world);
  });
}

void check() {
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  require_refused({}, "this program has started MPI itself");
  require_refused({.mpi_communicator = MPI_Comm_c2f(MPI_COMM_NULL)}, "MPI_COMM_NULL");
  require_refused({.ranks = 2, .mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD)}, "leave their number out");

  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, number % 2, -number, &half);  // in the reverse of the world's order
  run_job(half);
  run_job(half);
  MPI_Comm_free(&half);
  run_job(MPI_COMM_WORLD);
  if (number == 0) std::printf("the program's communicators were taken as they are\n");
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  try {
    check();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
