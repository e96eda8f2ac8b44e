// The World of ranks that are processes: how they make communicators.
#include "comm/mpi/process_backend.hpp"

#include <exception>
#include <utility>
#include <vector>

namespace tessera::comm {

ProcessBackend::ProcessBackend(ProcessJob& job, int threads, RankLog& log)
    : Backend({.name = job.backend_name(),
               .rank = job.rank(),
               .size = job.place().ranks,
               .device = Device::cpu(),
               .threads = threads,
               .timeout = job.timeout(),
               .hosts = job.place().of_meshes()},
              job, log),
      job_(job),
      creation_(job, {.index = 0, .name = "creation", .members = everybody(job.rank(), job.place().ranks)},
                job.take_creation_memory()) {}

// Making a communicator is itself a collective, of all ranks, with its name and partition as label: ranks that disagree
// about it, or do not come, get the same errors as in any other.
std::unique_ptr<Communicator> ProcessBackend::make_communicator(std::string name, const CommunicatorUse& use) {
  ProcessGroup::Identity identity{.index = ++communicators_made_,
                                  .name = communicator_name(name, use.group),
                                  .members = members_of(use.group, facts().rank, facts().size)};
  SharedMemory memory = shared_with_host(creation_label(name, use.group), identity.members);
  return make_process_communicator(std::make_shared<ProcessGroup>(job_, std::move(identity), std::move(memory)));
}

// Of a group's ranks on a host the lowest makes the memory, the others open it before anybody goes on.
SharedMemory ProcessBackend::shared_with_host(const std::string& label, const Members& members) {
  const Bytes size = shared::GroupLayout(members.size()).size();
  const std::vector<int>& here = job_.place().here;
  const auto is_member = [&](int rank) { return std::count(members.ranks.begin(), members.ranks.end(), rank) > 0; };
  const int maker = *std::find_if(here.begin(), here.end(), is_member);
  SharedMemory memory;
  if (maker == job_.rank()) memory = SharedMemory::make("tessera-communicator", size);
  creation_.enter(signature_of_creation(label), nullptr, memory.file().descriptor);
  try {
    if (maker != job_.rank()) {
      const int descriptor = creation_.creation_descriptor(maker);
      memory = SharedMemory::open({.owner = job_.process_of(maker), .descriptor = descriptor, .size = size});
    }
  } catch (...) {
    creation_.fail(std::current_exception());
    throw;
  }
  creation_.finish();
  return memory;
}

}  // namespace tessera::comm
