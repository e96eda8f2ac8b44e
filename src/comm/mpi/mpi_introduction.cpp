// All calls of MPI. On the CPU MPI introduces the ranks to each other and carries messages between hosts; with CUDA
// devices it only says where their rendezvous is.
#include "comm/mpi/mpi_introduction.hpp"

#include <fmt/format.h>
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "comm/halves.hpp"
#include "comm/patience.hpp"
#include "comm/rank_log.hpp"
#include "comm/start.hpp"
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
                      in_seconds(timeout)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// While it lives, a call may take so long and no longer: then the process says so and ends, because nothing takes a
// thread out of MPI.
class Watchdog {
 public:
  Watchdog(const char* call, std::chrono::milliseconds timeout)
      : thread_([call, timeout](const std::stop_token& stop) { watch(call, timeout, stop); }) {}

 private:
  static void watch(const char* call, std::chrono::milliseconds timeout, const std::stop_token& stop) {
    Patience patience(timeout);
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any stopped;
    while (!stop.stop_requested()) {
      const auto next_look = patience.look();
      if (patience.is_over()) give_up(call, timeout);
      stopped.wait_until(lock, stop, next_look, [] { return false; });
    }
  }

  [[noreturn]] static void give_up(const char* call, std::chrono::milliseconds timeout) {
    const Start start = how_started();
    say(fmt::format(
        "error: rank {} waited up to {:.3g} s in {} for the other processes of the job: one has stopped or hangs, "
        "or its host cannot be reached; raise the timeout if they are only slow\n",
        start.rank, in_seconds(timeout), call));
    ::_exit(1);
  }

  std::jthread thread_;  // ends with this
};

int count_of(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw InternalError(fmt::format("a message of {} bytes was not cut into pieces", bytes));
  }
  return static_cast<int>(bytes);
}

class MpiChannel final : public HostChannel {
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

bool program_has_mpi() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

// Its ends are of the thread that launches.
class MpiIntroduction final : public Introduction {
 public:
  // Takes the arguments of introduce_over_mpi().
  static MpiIntroduction& instance(const MpiDeadlines& deadlines) {
    static MpiIntroduction process(deadlines);
    process.end_timeout_ = deadlines.end;
    return process;
  }
  // Over a communicator of the program's own (MPI_Comm_c2f), of a duplicate: the program has started MPI, and ends it.
  // One for each communicator, until that is freed. Collective over it. Throws UsageError where it is none, or MPI was
  // not started, or with too few threads.
  static MpiIntroduction& over(int communicator, const MpiDeadlines& deadlines);
  ~MpiIntroduction() final {
    if (abandoned_ || !ends_mpi_) return;
    const Watchdog watchdog("MPI_Finalize", end_timeout_);
    MPI_Finalize();
  }

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::string_view backend_name() const final { return "mpi"; }
  std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) final;
  std::unique_ptr<HostChannel> make_channel(std::chrono::milliseconds timeout) final;

  // From now on MPI is left as it is when the process ends: some rank may be gone, and MPI's own end would wait for it.
  void abandon() final { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

 private:
  explicit MpiIntroduction(const MpiDeadlines& deadlines);
  MpiIntroduction(MPI_Comm communicator, const MpiDeadlines& deadlines);
  void stand_in(MPI_Comm communicator);

  MPI_Comm communicator_ = MPI_COMM_NULL;
  bool ends_mpi_;
  int rank_ = 0;
  int size_ = 1;
  std::chrono::milliseconds end_timeout_;
  bool abandoned_ = false;
  std::vector<std::byte> sent_;  // of all_gather(): MPI may write here even after a deadline
  std::vector<std::byte> gathered_;
};

// Under which MPI keeps, with a communicator of the program's, what has been made for it.
int process_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    const auto end = [](MPI_Comm, int, void* process, void*) {
      std::unique_ptr<MpiIntroduction> ended(static_cast<MpiIntroduction*>(process));
      // MPI may still write to what a failure has cut short.
      if (ended->abandoned()) static_cast<void>(ended.release());
      return MPI_SUCCESS;
    };
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end, &made, nullptr), "MPI_Comm_create_keyval");
    return made;
  }();
  return key;
}

MpiIntroduction& MpiIntroduction::over(int communicator, const MpiDeadlines& deadlines) {
  int level = MPI_THREAD_SINGLE;
  if (program_has_mpi()) MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED) {
    throw UsageError(
        "a communicator of the program's was given, but the program has not started MPI, or with too few threads: call "
        "MPI_Init_thread with MPI_THREAD_MULTIPLE before launch(), and MPI_Finalize behind it");
  }
  const MPI_Comm theirs = MPI_Comm_f2c(communicator);
  if (theirs == MPI_COMM_NULL) throw UsageError("the program's MPI communicator is MPI_COMM_NULL on this process");
  MpiIntroduction* process = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(theirs, process_key(), &process, &known), "MPI_Comm_get_attr");
  if (known != 0) return *process;
  std::unique_ptr<MpiIntroduction> made(new MpiIntroduction(theirs, deadlines));
  check(MPI_Comm_set_attr(theirs, process_key(), made.get()), "MPI_Comm_set_attr");
  return *made.release();
}

MpiIntroduction::MpiIntroduction(MPI_Comm communicator, const MpiDeadlines& deadlines)
    : ends_mpi_(false), end_timeout_(deadlines.end) {
  MPI_Comm own = MPI_COMM_NULL;
  {
    const Watchdog watchdog("MPI_Comm_dup", deadlines.start);
    check(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
  }
  stand_in(own);
}

MpiIntroduction::MpiIntroduction(const MpiDeadlines& deadlines) : ends_mpi_(true), end_timeout_(deadlines.end) {
  if (program_has_mpi()) {
    throw UsageError(
        "this program has started MPI itself: say which communicator's processes are the ranks "
        "(LaunchOptions::mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD)), or leave MPI to launch()");
  }
  int level = MPI_THREAD_SINGLE;
  const auto start = [&] {
    const Watchdog watchdog("MPI_Init_thread", deadlines.start);
    return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  };
  if (start() != MPI_SUCCESS) {
    throw UnavailableError(
        "MPI_Init_thread failed: was this program started with the mpirun of the MPI it is built with?");
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw UnavailableError(
        fmt::format("this MPI gives thread level {}, and a rank's messages have a thread of their own "
                    "(MPI_THREAD_SERIALIZED, {}): use an MPI built with threads",
                    level, MPI_THREAD_SERIALIZED));
  }
  stand_in(MPI_COMM_WORLD);
}

void MpiIntroduction::stand_in(MPI_Comm communicator) {
  communicator_ = communicator;
  MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
}

std::vector<std::byte> MpiIntroduction::all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) {
  sent_.assign(mine.begin(), mine.end());
  gathered_.resize(mine.size() * static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  const int count = count_of(mine.size());
  check(MPI_Iallgather(sent_.data(), count, MPI_BYTE, gathered_.data(), count, MPI_BYTE, communicator_, &request),
        "MPI_Iallgather");
  complete(request, timeout, "MPI_Iallgather");
  return gathered_;
}

std::unique_ptr<HostChannel> MpiIntroduction::make_channel(std::chrono::milliseconds timeout) {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(communicator_, &communicator, &request), "MPI_Comm_idup");
  complete(request, timeout, "MPI_Comm_idup");
  return std::make_unique<MpiChannel>(communicator);
}

}  // namespace

bool has_mpi() { return true; }

Introduction& introduce_over_mpi(std::optional<int> communicator, const MpiDeadlines& deadlines) {
  return communicator ? MpiIntroduction::over(*communicator, deadlines) : MpiIntroduction::instance(deadlines);
}

}  // namespace tessera::comm
