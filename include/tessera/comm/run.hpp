// The entry to a job: starts the ranks and turns what they throw into one line and an exit code.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Where ranks compute. automatic: on CUDA devices where there are any that this build can drive, else on the CPU.
enum class DeviceChoice { automatic, cpu, cuda };

// Returns the kind that a choice comes to on this machine. Throws UnavailableError, saying what is missing, for CUDA
// that cannot be had.
DeviceKind resolve(DeviceChoice choice);

// How ranks exchange data. automatic: threads of one process and processes of one host read each other's memory;
// between processes with CUDA devices it is nccl; on the CPU MPI carries data between hosts. nccl: NVIDIA's library,
// for ranks that have CUDA devices.
enum class BackendChoice { automatic, nccl };

// Who forms sums over ranks on the nccl backend; the others form them as `ranked` always. ranked: in fp32 in rank
// order, as every backend does. fast: NCCL, in the type in which gradients travel and in an order of its own, so that
// results are near the other backends' and not equal to them.
enum class SumChoice { ranked, fast };

struct LaunchOptions {
  // Threads of this process, 1 to 1024; default: 1. Not for a program that mpirun, torchrun or srun has started: there
  // each process is one rank, and stating a number is a UsageError.
  std::optional<int> ranks = std::nullopt;
  std::chrono::milliseconds timeout{60'000};  // the deadline of every wait for another rank
  std::optional<int> threads = std::nullopt;  // host threads per rank; default: this host's cores / ranks, at least 1
  // Where each rank writes rank-R.log: how it began, its warnings, how it ended; where ranks are processes also what
  // the ranks from 1 on print. Default: nowhere.
  std::optional<std::filesystem::path> log_dir = std::nullopt;
  // Rank r, a thread, has CUDA device r modulo their number, so several may share one; of processes those of a host are
  // counted. The default suits programs that compute in tasks on the host. Processes with devices need a build with
  // NCCL: without it cuda is an UnavailableError for them.
  DeviceChoice device = DeviceChoice::cpu;
  // nccl is a UsageError for ranks on the CPU, and an UnavailableError where its library is not found: TESSERA_NCCL in
  // the environment names it where the system does not find it by itself. Ranks have a device each, or share one where
  // NCCL can (2.30 and later, with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment).
  BackendChoice backend = BackendChoice::automatic;
  SumChoice sums = SumChoice::ranked;
  // The ranks are the processes of a communicator of the program's own, and in its order: MPI_Comm_c2f(communicator).
  // The program has called MPI_Init_thread and calls MPI_Finalize, which a job that failed may keep waiting; with
  // MPI_THREAD_SERIALIZED it leaves MPI alone while launch() runs, with MPI_THREAD_MULTIPLE it need not. The job talks
  // on duplicates. `ranks` is left out.
  std::optional<int> mpi_communicator = std::nullopt;
  // The ranks are those of an ncclComm_t of the program's own, and this thread is one of them, on the communicator's
  // device: NCCL splits all that the job needs from it (ncclCommSplit). The program leaves it alone while launch()
  // runs, and destroys it; where the others do not come in time it is aborted. `device` is left out, too.
  void* nccl_communicator = nullptr;
};

// Starts `ranks` ranks, each with its World on a thread of its own (rank 0 on the calling thread), and waits for all.
// When any rank throws, all others are aborted, and the first cause is rethrown here: the exception itself, its text
// beginning with "rank R: " unless there is one rank. Blocks.
//
// In a process of a launch (start.hpp) there is one rank, on the calling thread, and this returns when the ranks of all
// processes have ended. The first cause is then rethrown in every process, with its type in the one where it
// happened and as an AbortedError in the others; such a process must end, which ends the job. Throws UnavailableError
// for a launch that this build cannot serve.
void launch(const LaunchOptions& options, const std::function<void(World&)>& body);

// For main(): as launch(), but an exception becomes "error: …" on stderr and exit code 1 (2 for bad options). Of
// several processes, the one where the first cause happened says it, and the others end after it has.
int run(const LaunchOptions& options, const std::function<void(World&)>& body);

// For main(), the short way: takes --ranks N, --timeout SECONDS, --threads N, --log-dir DIR, --device auto|cpu|cuda,
// --backend auto|nccl and --sums ranked|fast out of argv and hands the body what is left (without argv[0]). An unknown
// value there is one line on stderr and exit code 2.
using Arguments = std::span<const std::string>;
int run(int argc, char** argv, const std::function<void(World&, Arguments)>& body);
// The same, but --help prints a page on stdout (of several processes the first one's), and the exit code is 0. The page
// has `about`, what the program does and takes, in lines as they are to stand there, these options, and an example.
int run(int argc, char** argv, std::string_view about, const std::function<void(World&, Arguments)>& body);
// These do the same, and any other argument that is left is an error.
int run(int argc, char** argv, std::string_view about, const std::function<void(World&)>& body);
int run(int argc, char** argv, const std::function<void(World&)>& body);  // without a word about the program

}  // namespace tessera

#pragma GCC visibility pop
