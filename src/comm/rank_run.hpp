// The part of a launch that is the same for every rank, however it was started and whatever ranks exchange data over.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/world_backend.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

using Body = std::function<void(World&)>;

// Gives `body` a World over this backend, ends the World, and leaves the job. What was thrown, or null: the job has
// been aborted with it, and the log has it.
std::exception_ptr run_rank(JobMember& job, RankLog& log, const Body& body,
                            const std::function<std::unique_ptr<World::Backend>()>& make_backend);

// ---- a process that is one rank ----

// A launch calls these. Both are called on the thread that launches, `body` on others too where ranks are threads.
struct Launched {
  const Body& body;
  // Tells the user why the job failed. Of several processes only one calls it, and the others end after it has.
  const std::function<void(const std::exception_ptr&)>& report;
};

struct ProcessStart {
  const Start& start;
  const LaunchOptions& options;
  const Launched& launched;
  RankLog& log;
};
// Returns what `run` returns. An exception of it, before there was a job, is told to the user, and is the cause: the
// other processes know nothing of it.
std::exception_ptr launch_one(const Start& start, const LaunchOptions& options, const Launched& launched,
                              const std::function<std::exception_ptr(const ProcessStart&)>& run);

// `facts` for the user, at the start of a job: on rank 0's standard error, and in every log.
void say_start(const ProcessStart& how, const std::string& facts);

// The first failure of a job of processes decides its outcome: where it happened, this tells the user; elsewhere it
// returns after that, so that no launcher cuts it short. Returns the first cause, or null. Call it after run_rank().
std::exception_ptr outcome_of_process(JobMember& job, const ProcessStart& how, const std::exception_ptr& thrown);

}  // namespace tessera::comm
