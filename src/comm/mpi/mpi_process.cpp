// All calls of MPI.
#include "comm/mpi/mpi_process.hpp"

#include <fmt/format.h>
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <limits>
#include <string>
#include <thread>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw CommunicationError(fmt::format("{} failed: {}", call, text));
}

void complete(MPI_Request& request, std::chrono::milliseconds timeout, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) return;
    if (std::chrono::steady_clock::now() > deadline) {
      throw CommunicationError(
          fmt::format("the other processes of the job did not come to its start within {:.3g} s; do they run the same "
                      "program?",
                      std::chrono::duration<double>(timeout).count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

int count_of(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw InternalError(fmt::format("a message of {} bytes was not cut into pieces", bytes));
  }
  return static_cast<int>(bytes);
}

class MpiChannel final : public MpiProcess::Channel {
 public:
  explicit MpiChannel(MPI_Comm communicator) : communicator_(communicator) {}

  Transfer send(int to, int tag, std::span<const std::byte> bytes) override {
    const Transfer transfer = free_place();
    check(MPI_Isend(bytes.data(), count_of(bytes.size()), MPI_BYTE, to, tag, communicator_, &requests_[transfer]),
          "MPI_Isend");
    return transfer;
  }

  Transfer receive(int from, int tag, std::span<std::byte> bytes) override {
    const Transfer transfer = free_place();
    check(MPI_Irecv(bytes.data(), count_of(bytes.size()), MPI_BYTE, from, tag, communicator_, &requests_[transfer]),
          "MPI_Irecv");
    return transfer;
  }

  bool ended(Transfer transfer) override {
    int done = 0;
    check(MPI_Test(&requests_[transfer], &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) free_.push_back(transfer);
    return done != 0;
  }

  std::optional<Arrival> probe(int tag) override {
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator_, &there, &status), "MPI_Iprobe");
    if (there == 0) return std::nullopt;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    return Arrival{.from = status.MPI_SOURCE, .bytes = static_cast<std::size_t>(bytes)};
  }

 private:
  Transfer free_place() {
    if (free_.empty()) {
      free_.push_back(requests_.size());
      requests_.push_back(MPI_REQUEST_NULL);
    }
    const Transfer place = free_.back();
    free_.pop_back();
    return place;
  }

  MPI_Comm communicator_;  // MPI's until the process ends: freeing it is collective, and peers may be gone
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> free_;
};

}  // namespace

MpiProcess& MpiProcess::instance() {
  static MpiProcess process;
  return process;
}

MpiProcess::MpiProcess() {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) {
    throw UnavailableError(
        "MPI_Init_thread failed: was this program started with the mpirun of the MPI it is built with?");
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw UnavailableError(
        fmt::format("this MPI gives thread level {}, and a rank's messages have a thread of their own "
                    "(MPI_THREAD_SERIALIZED, {}): use an MPI built with threads",
                    level, MPI_THREAD_SERIALIZED));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiProcess::~MpiProcess() {
  if (early_end_) {
    early_end_();
  } else if (!abandoned_) {
    MPI_Finalize();
  }
}

std::vector<std::byte> MpiProcess::all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) {
  sent_.assign(mine.begin(), mine.end());
  gathered_.resize(mine.size() * static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  const int count = count_of(mine.size());
  check(MPI_Iallgather(sent_.data(), count, MPI_BYTE, gathered_.data(), count, MPI_BYTE, MPI_COMM_WORLD, &request),
        "MPI_Iallgather");
  complete(request, timeout, "MPI_Iallgather");
  return gathered_;
}

std::unique_ptr<MpiProcess::Channel> MpiProcess::make_channel(std::chrono::milliseconds timeout) {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &communicator, &request), "MPI_Comm_idup");
  complete(request, timeout, "MPI_Comm_idup");
  return std::make_unique<MpiChannel>(communicator);
}

}  // namespace tessera::comm
