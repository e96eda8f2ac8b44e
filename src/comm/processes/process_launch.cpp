// Ranks that are processes on the CPU, whoever has started them: their backend and their launch. Those that torchrun or
// SLURM has started on one host meet at the rendezvous, which ends when they share memory.
#include "comm/processes/process_launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch_options.hpp"
#include "comm/processes/process_group.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "comm/start.hpp"

namespace tessera::comm {
namespace {

class ProcessBackend final : public World::Backend {
 public:
  ProcessBackend(ProcessJob& job, int threads, RankLog& log)
      : Backend({.name = job.backend_name(), .threads = threads, .place = job.place()}, job, log),
        job_(job),
        creation_(job, {.channel = 0, .name = "creation", .members = everybody(job.rank(), job.size())},
                  job.take_creation_memory()) {}

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }

  // Making a communicator is itself a collective, of all ranks, with its name and partition as label: ranks that
  // disagree about it, or do not come, get the same errors as in any other.
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    Identity identity = channels_.take(name, use.group, job_.rank(), job_.size());
    SharedMemory memory = shared_with_host(creation_label(name, use.group), identity.members);
    return make_process_communicator(std::make_shared<ProcessGroup>(job_, std::move(identity), std::move(memory)));
  }

 private:
  // The lowest of a group's ranks on a host makes the memory, the others open it before anybody goes on.
  SharedMemory shared_with_host(const std::string& label, const Members& members) {
    const Bytes size = shared::GroupLayout(members.size()).size();
    const std::vector<int>& here = job_.place().here;
    const auto is_member = [&](int rank) { return std::count(members.ranks.begin(), members.ranks.end(), rank) > 0; };
    const int maker = *std::find_if(here.begin(), here.end(), is_member);
    SharedMemory memory;
    if (maker == job_.rank()) memory = SharedMemory::make("tessera-communicator", size);
    creation_.run_creation(label, memory.file().descriptor, [&] {
      if (maker == job_.rank()) return;
      const int descriptor = creation_.creation_descriptor(maker);
      memory = job_.open_memory(maker, descriptor, size);
    });
    return memory;
  }

  ProcessJob& job_;
  ProcessGroup creation_;
  ChannelCount channels_;
};

std::exception_ptr run_in_shared_memory(ProcessJob& job, const ProcessStart& how) {
  const QuietOutput quiet(how.options, job.rank());
  const int threads = how.options.threads.value_or(job.cores_per_rank());
  say_start(how, start_line(how.start, job.place(), threads));
  const std::exception_ptr thrown =
      run_rank(job, how.log, how.launched.body, [&] { return make_process_backend(job, threads, how.log); });
  return outcome_of_process(job, how, thrown);
}

}  // namespace

std::unique_ptr<World::Backend> make_process_backend(ProcessJob& job, int threads, RankLog& log) {
  return std::make_unique<ProcessBackend>(job, threads, log);
}

std::exception_ptr run_processes_introduced(Introduction& introduction, const ProcessStart& how) {
  ProcessJob job(introduction, how.options.timeout);
  return run_in_shared_memory(job, how);
}

std::exception_ptr run_processes_at_rendezvous(const ProcessStart& how) {
  const auto timeout = start_timeout(how.options.timeout);
  MeetingPoint point = meeting_point([](const char* name) { return std::getenv(name); }, how.start, timeout);
  std::unique_ptr<ProcessJob> job;
  {
    const std::unique_ptr<Control> joined =
        join_rendezvous(join_options(point.place, how.start, how.options.timeout), timeout);
    Control& control = *joined;
    std::exception_ptr thrown;
    try {
      RendezvousIntroduction introduction(control);
      job = std::make_unique<ProcessJob>(introduction, how.options.timeout);
    } catch (...) {
      thrown = std::current_exception();
      control.abort(text_of(thrown), thrown);
    }
    control.leave();
    if (control.failure() != nullptr) return outcome_of_process(control, how, thrown);
  }
  point.server.reset();
  return run_in_shared_memory(*job, how);
}

}  // namespace tessera::comm
