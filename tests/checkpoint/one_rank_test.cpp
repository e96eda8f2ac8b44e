// Each collective call of models, files and worlds, made by one rank alone while the others take a step: all ranks get
// an error that names both calls, after the timeout at the latest.
#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint_model.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/weights.hpp"

using namespace checkpoint_model;

namespace one_rank_test {

struct Weight : Module {
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("mean", mean);
  }
  void forward(Window&) {}
  Parameter weight{{300}, Initial::ones()};
  Buffer mean{{3}};
};

struct Fixture {
  Fixture(World& given, const TemporaryFolder& folder)
      : world(given), model(given, {.checkpointing = Checkpointing::background}) {
    model.add(weight, "unit");
    model.finalize(Sgd{});
    checkpoints.emplace(model, CheckpointerOptions{.directory = folder.path()});
  }
  World& world;
  Weight weight;
  FullyShard model;
  std::optional<Checkpointer> checkpoints;
};

struct Call {
  const char* said;  // of it in the error
  std::function<void(Fixture&)> make;
};

std::string error_of(const Call& call) {
  const TemporaryFolder folder;
  try {
    launch({.ranks = 2, .timeout = std::chrono::seconds(5)}, [&](World& world) {
      Fixture fixture(world, folder);
      if (world.rank() == 0) call.make(fixture);
      fixture.model.forward(fixture.weight);
      fixture.model.synchronize();
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("what_one_rank_calls_alone_is_named_with_what_the_others_call") {
  const TemporaryFolder elsewhere;
  const std::vector<Call> calls = {
      {"checkpoint: buffers", [](Fixture& f) { f.checkpoints->save({.step = 2}); }},
      {"checkpoint: buffers", [](Fixture& f) { f.checkpoints->save_async({.step = 2}); }},
      {"checkpoint: ", [](Fixture& f) { f.checkpoints->latest(); }},
      {"checkpoint: ", [&](Fixture& f) { f.checkpoints->load(elsewhere / "step-00000001"); }},
      {"checkpoint", [&](Fixture& f) { Checkpointer(f.model, {.directory = elsewhere.path()}); }},
      {"weights", [&](Fixture& f) { dump_weights(f.model, elsewhere / "w.safetensors"); }},
      {"weights", [&](Fixture& f) { load_weights(f.model, elsewhere / "w.safetensors"); }},
      {"whole(unit.weight)", [](Fixture& f) { f.model.whole(f.weight.weight); }},
      {"norm", [](Fixture& f) { f.model.gradient_norms(); }},
      {"unit", [](Fixture& f) { f.model.synchronize_buffers(); }},
      {"options, units", [](Fixture& f) { f.model.recompile(); }},
      {"set_step_scalars()", [](Fixture& f) { f.model.set_step_scalars(f.model.step_scalars()); }},
      {"set_states_begun()", [](Fixture& f) { f.model.set_states_begun(f.model.states_begun()); }},
      {"\"options, units",
       [](Fixture& f) {
         Weight other;
         FullyShard second(f.world, {});
         second.add(other, "second");
         second.finalize(Sgd{});
       }},
      {"barrier \"mine\"", [](Fixture& f) { f.world.barrier("mine"); }},
      {"\"mine\"", [](Fixture& f) { f.world.gather(std::vector<std::byte>(3), "mine"); }},
      {"\"mine\"", [](Fixture& f) { f.world.mean(1.0, 1.0, "mine"); }},
      {"\"mine\"", [](Fixture& f) { f.world.sum(1.0, "mine"); }},
      {"\"mine\"", [](Fixture& f) { f.world.average(1.0f, "mine"); }},
      {"\"mine\"",
       [](Fixture& f) {
         std::vector<std::byte> all(6);
         f.world.all_gather(all, "mine");
       }},
      {"\"mine\"", [](Fixture& f) { f.world.require_equal(1, "mine"); }},
      {"make_communicator \"mine\"", [](Fixture& f) { f.world.make_communicator("mine"); }},
      {"make_communicator \"files\"", [](Fixture& f) { f.world.make_communicator("files", {.host_memory = true}); }}};
  // All at once: each waits until its time is over, and a loaded machine may take seconds until both ranks have begun.
  std::vector<std::future<std::string>> errors;
  for (const Call& call : calls) errors.push_back(std::async(std::launch::async, error_of, call));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const std::string text = errors[i].get();
    CAPTURE(text);
    CHECK(text.find(call.said) != std::string::npos);
    CHECK(text.find("all-gather \"unit\"") != std::string::npos);
  }
}

}  // namespace one_rank_test
