// Ranks that are processes on the CPU. Those of one host share memory; between hosts go the messages of whoever has
// introduced them, where that carries any.
#pragma once

#include <exception>
#include <memory>

#include "comm/processes/process_job.hpp"
#include "comm/rank_run.hpp"

namespace tessera::comm {

// The ranks meet over TCP, which ends when they share memory.
std::exception_ptr run_processes_at_rendezvous(const ProcessStart& how);
std::exception_ptr run_processes_introduced(Introduction& introduction, const ProcessStart& how);

std::unique_ptr<World::Backend> make_process_backend(ProcessJob& job, int threads, RankLog& log);

}  // namespace tessera::comm
