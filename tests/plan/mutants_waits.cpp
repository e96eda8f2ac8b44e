// Waits removed, on the previous record instead of the current, and on records one operation early.
#include <fmt/format.h>

#include <utility>

#include "mutants.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace {

Wait& at(Plan& plan, const WaitPlace& place) {
  return plan.segments[place.segment].operations[place.operation].waits[place.wait];
}
const Wait& at(const Plan& plan, const WaitPlace& place) {
  return plan.segments[place.segment].operations[place.operation].waits[place.wait];
}

std::string name_of(const Plan& plan, const WaitPlace& place) {
  return fmt::format("{} on {}", describe(plan, EventPoint{place.segment, place.operation}),
                     describe(plan, plan.events[at(plan, place).event]));
}

void erase_wait(Plan& plan, const WaitPlace& place) {
  auto& waits = plan.segments[place.segment].operations[place.operation].waits;
  waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(place.wait));
}

MakeMutants removed(WaitType type) {
  return [type](const Plan& plan, const MutantSink& sink) {
    for (const WaitPlace& place : waits_of(plan)) {
      if (at(plan, place).type != type) continue;
      Plan mutant = plan;
      erase_wait(mutant, place);
      sink.take(std::move(mutant), name_of(plan, place));
    }
  };
}

// A wait refers to the latest record launched before it: the waiting operation is launched in front of the recording
// one.
void launched_before_record(const Plan& plan, const MutantSink& sink) {
  for (const WaitPlace& place : waits_of(plan)) {
    const EventPoint record = plan.events[at(plan, place).event];
    const bool in_one_run = record.segment == place.segment && record.operation < place.operation;
    if (at(plan, place).type == WaitType::throttle || !in_one_run) continue;
    Plan mutant = plan;
    launch_before(mutant, place.segment, place.operation, record.operation);
    sink.take(std::move(mutant), name_of(plan, place));
  }
}

// The wait alone moves, to an operation that does nothing: on the waiting stream, at the start of the recording
// segment, where the latest record is still the one of the segment's last run. An order wait means a launch, so there
// this is its removal, of which there is a class. A wait for a later operation of the own segment is for the last run's
// record as it stands: excluded.
void on_previous_record(const Plan& plan, const MutantSink& sink) {
  for (const WaitPlace& place : waits_of(plan)) {
    const Wait wait = at(plan, place);
    const EventPoint record = plan.events[wait.event];
    if (wait.type != WaitType::data) continue;
    if (record.segment == place.segment && record.operation >= place.operation) {
      sink.exclude();
      continue;
    }
    Plan mutant = plan;
    erase_wait(mutant, place);
    const StreamId stream = plan.at({place.segment, place.operation}).stream;
    const EventPoint relay = insert_nothing(mutant, {record.segment, 0}, stream);
    operation_at(mutant, relay).waits.push_back(wait);
    sink.take(std::move(mutant), name_of(plan, place));
  }
}

// The place one operation earlier on the stream, made when the operation is its segment's first there.
EventPoint one_earlier(Plan& plan, EventPoint record) {
  const std::size_t previous = previous_on_stream(plan, record.segment, record.operation);
  return previous == no_operation ? insert_nothing(plan, record, plan.at(record).stream)
                                  : EventPoint{record.segment, previous};
}

// The wait is for the last run's record, and one operation earlier on that stream is launched before the waiter: this
// run's, which comes after the last run's record. So much is enough.
bool is_enough_when_early(const Plan& plan, const WaitPlace& place) {
  const EventPoint record = plan.events[at(plan, place).event];
  if (record.segment != place.segment || record.operation < place.operation) return false;
  const std::size_t early = previous_on_stream(plan, record.segment, record.operation);
  return early != no_operation && early < place.operation;
}

void record_early_for_one_wait(const Plan& plan, const MutantSink& sink) {
  for (const WaitPlace& place : waits_of(plan)) {
    if (at(plan, place).type == WaitType::throttle) continue;
    if (at(plan, place).type == WaitType::data && is_enough_when_early(plan, place)) {
      sink.exclude();
      continue;
    }
    Plan mutant = plan;
    const EventPoint record = plan.events[at(plan, place).event];
    at(mutant, place).event = mutant.events.size();  // before an insertion can shift the place
    const EventPoint early = one_earlier(mutant, record);
    mutant.events.push_back(early);
    sink.take(std::move(mutant), name_of(plan, place));
  }
}

void record_early_for_all_waits(const Plan& plan, const MutantSink& sink) {
  std::vector<bool> guards(plan.events.size(), false);
  for (const WaitPlace& place : waits_of(plan)) {
    const Wait& wait = at(plan, place);
    const bool is_enough = wait.type == WaitType::data && is_enough_when_early(plan, place);
    if (wait.type != WaitType::throttle && !is_enough) guards[wait.event] = true;
  }
  for (std::size_t event = 0; event < plan.events.size(); ++event) {
    if (!guards[event]) continue;
    Plan mutant = plan;
    const EventPoint early = one_earlier(mutant, plan.events[event]);
    mutant.events[event] = early;
    sink.take(std::move(mutant), describe(plan, plan.events[event]));
  }
}

}  // namespace

std::vector<MutantClass> wait_mutants() {
  return {{"data wait removed", false, removed(WaitType::data)},
          {"order wait removed", false, removed(WaitType::order)},
          {"waiter launched before the record", false, launched_before_record},
          {"wait on the previous record", false, on_previous_record},
          {"record one operation early, one waiter", false, record_early_for_one_wait},
          {"record one operation early, all waiters", false, record_early_for_all_waits}};
}

}  // namespace tessera::plan
