// A mixture of experts of which each replica has one: a unit with other values in every replica, whose gradients stay
// there. Tokens go to the replica that has their expert, and come back, by a communicator of the user's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plain_layer.hpp"
#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace experts_test {

using namespace tessera;
using plain::error;
using toy::contains;
using toy::failure_of;
using toy::Values;

constexpr std::size_t rows = 3, input_width = 5, token_width = 7, hidden_width = 11;
constexpr std::size_t widest = hidden_width;
constexpr int steps = 4;
constexpr float rate = 0.02f;

using Layer = toy::Layer<float>;

// Which replica has the expert of a rank's token.
std::size_t expert_of(std::size_t token, int step, int rank, std::size_t replicas) {
  return (token + std::size_t(step) + 2 * std::size_t(rank)) % replicas;
}

// y = expert(x) of this replica, for the tokens that are sent to it; other rows are zero, and zero their gradients.
struct Mixture {
  Mixture(World& world, std::size_t experts)
      : replicas(experts),
        replica(std::size_t(world.rank()) / (std::size_t(world.size()) / experts)),
        rank(world.rank()),
        expert(token_width, hidden_width, replicas * rows),
        all(replicas * rows * widest),
        back(replicas * replicas * rows * widest) {
    const int ranks_of_replica = world.size() / int(replicas);
    const Mesh mesh = world.mesh({{"replicate", int(replicas)}, {"shard", ranks_of_replica}});
    tokens = world.make_communicator("tokens", {.group = mesh.group("replicate")});
    first_of_place = rank % ranks_of_replica;
    apart = ranks_of_replica;
  }

  // The rank whose token stands in a row of what was gathered, and its place there.
  int sender(std::size_t row) const { return first_of_place + int(row / rows) * apart; }
  std::size_t chosen(std::size_t row, int step) const { return expert_of(row % rows, step, sender(row), replicas); }

  // Everybody's rows to everybody at this place of all replicas, those of other experts cleared.
  void send(Stream& stream, const Values& mine, std::size_t width, int step) {
    stream.submit([this, &mine, width] {
      std::copy(mine.begin(), mine.end(), all.begin() + std::ptrdiff_t(replica * rows * width));
    });
    gather(stream, all, rows * width);
    stream.submit([this, width, step] {
      for (std::size_t row = 0; row < replicas * rows; ++row) {
        if (chosen(row, step) != replica) std::fill_n(all.begin() + std::ptrdiff_t(row * width), width, 0.0f);
      }
    });
  }
  // Copies back what the expert of each of this rank's rows made of it.
  void bring_back(Stream& stream, const Values& results, std::size_t width, int step, Values& mine) {
    stream.submit([this, &results, width] {
      std::copy_n(results.begin(), replicas * rows * width,
                  back.begin() + std::ptrdiff_t(replica * replicas * rows * width));
    });
    gather(stream, back, replicas * rows * width);
    stream.submit([this, width, step, &mine] {
      for (std::size_t token = 0; token < rows; ++token) {
        const std::size_t row = (expert_of(token, step, rank, replicas) * replicas + replica) * rows + token;
        std::copy_n(back.begin() + std::ptrdiff_t(row * width), width, mine.begin() + std::ptrdiff_t(token * width));
      }
    });
  }
  void gather(Stream& stream, Values& values, std::size_t of_rank) {
    tokens->all_gather(stream, {.data = reinterpret_cast<std::byte*>(values.data()),
                                .shard = Bytes(of_rank * sizeof(float)),
                                .label = "tokens"});
  }

  std::size_t replicas, replica;
  int rank, first_of_place = 0, apart = 1;
  Layer front{input_width, token_width, rows};
  Layer expert;
  Layer head{hidden_width, input_width, rows};
  std::unique_ptr<Communicator> tokens;
  Values all, back, x, made, dy, dmade;
};

struct Job {
  int ranks = 4;
  FullyShardOptions options = {};
  bool optional = false;  // replica `step` of so many skips its expert, whose tokens are then worth nothing
};
FullyShardOptions on_mesh(std::size_t replicas) {
  FullyShardOptions options{.replicas = replicas};
  return options;
}

bool skips(const Job& job, std::size_t expert, int step) {
  return job.optional && std::size_t(step) % job.options.replicas == expert;
}

void add_to(FullyShard& model, Mixture& net, const Job& job) {
  model.add(net.front, "front");
  model.add(net.expert, UnitOptions{.name = "expert", .optional = job.optional, .apart = Axis::replicate});
  model.add(net.head, "head");
}

// The host waits for the stream where it changes what tasks use: the net is small.
void pass(FullyShard& model, Mixture& net, const Job& job, int step, std::size_t micro) {
  using plan::WindowKind;
  Stream& stream = model.stream();
  const bool skipped = skips(job, net.replica, step);
  model.synchronize();
  net.x = toy::sample(rows * input_width, step, micro, net.rank, 0);
  net.made.assign(rows * hidden_width, 0.0f);
  net.dmade.assign(rows * token_width, 0.0f);
  net.send(stream, model.forward(net.front, net.x), token_width, step);
  const Values nothing(net.replicas * rows * widest, 0.0f);
  if (skipped) model.skip(net.expert, WindowKind::forward);
  const Values& y = skipped ? nothing : model.forward(net.expert, net.all);
  const Values seen = (model.synchronize(), net.all);  // the layer looks at it again in its backward window
  net.bring_back(stream, y, hidden_width, step, net.made);
  const Values& out = model.forward(net.head, net.made);
  stream.submit([&net, &out, scale = model.loss_scale()] { net.dy = error(out, net.x, *scale); });
  const Values& dh = model.backward(net.head, net.dy);
  net.send(stream, dh, hidden_width, step);
  const Values dsent = (model.synchronize(), net.all);
  net.expert.look_at(seen);
  if (skipped) model.skip(net.expert, WindowKind::backward);
  const Values& dx = skipped ? nothing : model.backward(net.expert, dsent);
  net.bring_back(stream, dx, token_width, step, net.dmade);
  model.backward(net.front, net.dmade);
  model.synchronize();
}

struct Trained {
  toy::Weights weights;       // by the names that files have
  std::vector<double> norms;  // of rank 0, by step
};

Trained train(const Job& job) {
  Trained result;
  launch({.ranks = job.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Mixture net(world, job.options.replicas);
    FullyShard model(world, job.options);
    add_to(model, net, job);
    model.finalize(AdamW{.learning_rate = rate, .weight_decay = 0.0f, .clip_norm = 0.5f});
    for (int step = 0; step < steps; ++step) {
      for (std::size_t micro = 0; micro < job.options.micro_batches; ++micro) pass(model, net, job, step, micro);
      model.update();
      const double norm = model.last_step().gradient_norm;
      if (world.rank() == 0) result.norms.push_back(norm);
    }
    toy::collect_weights(model, result.weights);
  });
  return result;
}

// ---- the same in a plain loop ----

struct PlainMixture {
  explicit PlainMixture(std::size_t replicas) {
    layers.emplace("front", plain::Layer("front", input_width, token_width));
    layers.emplace("head", plain::Layer("head", hidden_width, input_width));
    for (std::size_t e = 0; e < replicas; ++e) {
      const std::string name = "expert." + std::to_string(e);
      layers.emplace(name, plain::Layer(name, token_width, hidden_width));
    }
  }

  void pass(const Job& job, int step, std::size_t micro, int rank) {
    const Values x = toy::sample(rows * input_width, step, micro, rank, 0);
    const plain::Numbers tokens = layers.at("front").forward(plain::numbers(x));
    plain::Numbers made;
    for (std::size_t token = 0; token < rows; ++token) {
      const std::size_t expert = expert_of(token, step, rank, job.options.replicas);
      const plain::Numbers y = expert_layer(expert).forward(row(tokens, token, token_width));
      for (const double value : y) made.push_back(skips(job, expert, step) ? 0.0 : value);
    }
    const plain::Numbers out = layers.at("head").forward(made);
    const plain::Numbers dmade = layers.at("head").backward(made, out, error<double>(out, x, 1.0));
    plain::Numbers dtokens;
    for (std::size_t token = 0; token < rows; ++token) {
      const std::size_t expert = expert_of(token, step, rank, job.options.replicas);
      plain::Numbers dx(token_width, 0.0);
      if (!skips(job, expert, step)) {
        dx = expert_layer(expert).backward(row(tokens, token, token_width), row(made, token, hidden_width),
                                           row(dmade, token, hidden_width));
      }
      dtokens.insert(dtokens.end(), dx.begin(), dx.end());
    }
    layers.at("front").backward(plain::numbers(x), tokens, dtokens);
  }
  plain::Layer& expert_layer(std::size_t expert) { return layers.at("expert." + std::to_string(expert)); }
  static plain::Numbers row(const plain::Numbers& values, std::size_t index, std::size_t width) {
    const auto begin = values.begin() + std::ptrdiff_t(index * width);
    return {begin, begin + std::ptrdiff_t(width)};
  }
  // Returns the norm of all layers' mean gradients, those of experts once.
  double norm(double divisor) const {
    double squares = 0.0;
    for (const auto& [name, layer] : layers) squares += layer.squares(divisor);
    return std::sqrt(squares);
  }

  std::map<std::string, plain::Layer> layers;
};

// Clipped as the model clips.
void train_plainly(PlainMixture& net, const Job& job, const std::vector<double>& norms) {
  const double divisor = double(job.ranks) * double(job.options.micro_batches);
  for (int step = 0; step < steps; ++step) {
    for (auto& [name, layer] : net.layers) layer.clear();
    for (std::size_t micro = 0; micro < job.options.micro_batches; ++micro) {
      for (int rank = 0; rank < job.ranks; ++rank) net.pass(job, step, micro, rank);
    }
    const double norm = net.norm(divisor);
    CHECK(norms[std::size_t(step)] == doctest::Approx(norm).epsilon(1e-5));
    const double clip = std::min(1.0, 0.5 / norm);
    const plain::Rule rule = plain::adamw(double(rate), step + 1);
    for (auto& [name, layer] : net.layers) layer.update(divisor / clip, rule);
  }
}

struct MeshOfRanks {
  std::size_t replicas;
  int ranks_of_replica;
};
constexpr MeshOfRanks meshes[] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {2, 3}, {3, 2}};

Job job_on(const MeshOfRanks& mesh) {
  return {.ranks = int(mesh.replicas) * mesh.ranks_of_replica, .options = on_mesh(mesh.replicas)};
}

TEST_CASE("experts_of_replicas_train_as_in_a_plain_loop") {
  for (const MeshOfRanks& mesh : meshes) {
    for (const bool optional : {false, true}) {
      Job job = job_on(mesh);
      job.optional = optional;
      job.options.micro_batches = optional ? 2 : 1;
      const Trained trained = train(job);
      PlainMixture expected(mesh.replicas);
      INFO(mesh.replicas << " replicas of " << mesh.ranks_of_replica << (optional ? ", some skipped" : ""));
      train_plainly(expected, job, trained.norms);
      CHECK(trained.weights.size() == 2 * expected.layers.size());
      for (const auto& [name, layer] : expected.layers) plain::check_near(trained.weights, name, layer);
    }
  }
}

bool same_bits(const Trained& a, const Trained& b) {
  return a.norms == b.norms && toy::same_bits(a.weights, b.weights);
}

TEST_CASE("experts_of_replicas_are_bitwise_equal_between_strategies") {
  std::size_t turn = 0;
  for (const MeshOfRanks& mesh : meshes) {
    for (const AccumulationMode mode : {AccumulationMode::reduced, AccumulationMode::local}) {
      Job job = job_on(mesh);
      job.options.strategy = Strategy::ddp;
      job.options.micro_batches = mode == AccumulationMode::local ? 2 : 1;
      job.options.accumulation = mode;
      const Trained reference = train(job);
      for (const Strategy strategy : all_strategies) {
        ++turn;
        job.optional = false;
        job.options.strategy = strategy;
        job.options.prefetch = turn % 3;
        job.options.reshard_after_forward = turn % 2 == 0 ? Resharding(Axis::shard) : true;
        job.options.bucket_cap = Bytes(turn % 2 == 0 ? 0 : 1 << 20);
        job.options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
        if (turn % 2 == 0) job.options.diagnostics.delay_seed = turn;
        INFO(to_string(strategy) << " on " << mesh.replicas << " replicas of " << mesh.ranks_of_replica);
        CHECK(same_bits(train(job), reference));
      }
    }
  }
}

// ---- what can be looked at ----

TEST_CASE("each_replica_has_its_own_values_also_after_recompile") {
  const Job job{.ranks = 4, .options = on_mesh(2)};
  CHECK(failure_of(job.ranks, [&](World& world) {
          Mixture net(world, 2);
          FullyShard model(world, job.options);
          add_to(model, net, job);
          model.finalize(AdamW{.learning_rate = rate});
          pass(model, net, job, 0, 0);
          model.update();
          const Values expert = model.whole(net.expert.weight);
          const Values front = model.whole(net.front.weight);
          const auto all = world.gather(std::as_bytes(std::span(expert)), "experts");
          const std::size_t size = expert.size() * sizeof(float);
          CHECK(std::equal(all.begin(), all.begin() + std::ptrdiff_t(size), all.begin() + std::ptrdiff_t(size)));
          CHECK_FALSE(
              std::equal(all.begin(), all.begin() + std::ptrdiff_t(size), all.begin() + std::ptrdiff_t(2 * size)));
          // Norms by parameter: an expert's is its replica's alone, and squares add up to the whole over all of them.
          double squares = 0.0;
          for (const GradientNorm& entry : model.gradient_norms()) {
            const bool own = !model.plan().units[entry.parameter->unit()->index()].apart.empty();
            squares += entry.norm * entry.norm / (own ? 1.0 : 2.0);
          }
          const std::vector<std::byte> parts = world.gather(std::as_bytes(std::span(&squares, 1)), "squares");
          double sum = 0.0, of_rank = 0.0;
          for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
            std::memcpy(&of_rank, parts.data() + rank * sizeof of_rank, sizeof of_rank);
            sum += of_rank;
          }
          CHECK(std::sqrt(sum) == doctest::Approx(model.last_step().gradient_norm).epsilon(1e-6));
          model.recompile();
          CHECK(toy::same_bits(model.whole(net.expert.weight), expert));
          CHECK(toy::same_bits(model.whole(net.front.weight), front));
        }) == "");
}

// State that is not trained is one in each replica.
struct Counting : Module {
  void visit(ModuleVisitor& visitor) override { visitor("layer", layer), visitor("count", count); }
  Layer layer{2, 2, rows};
  Buffer count{{3}, Initial::normal(0.0f, 1.0f)};
};

TEST_CASE("buffers_of_experts_become_those_of_the_first_rank_of_their_replica") {
  CHECK(failure_of(6, [&](World& world) {
          Counting counting;
          FullyShard model(world, on_mesh(2));
          model.add(counting, UnitOptions{.name = "expert", .apart = Axis::replicate});
          model.finalize(AdamW{.learning_rate = rate});
          Values expected(3);
          Initial::normal(0.0f, 1.0f).fill(expected, 0, "expert." + std::to_string(world.rank() / 3) + ".count", 0);
          CHECK(toy::same_bits(Values(model.buffer(counting.count).begin(), model.buffer(counting.count).end()),
                               expected));
          model.buffer(counting.count)[1] = float(world.rank());
          model.synchronize_buffers();
          CHECK(model.buffer(counting.count)[1] == float(world.rank() / 3 * 3));
        }) == "");
}

TEST_CASE("what_experts_do_not_go_with_is_named") {
  toy::check_failure("unit expert has other values along replicate, which does not go with outer steps", 2,
                     [&](World& world) {
                       Layer layer(2, 2, rows);
                       FullyShard model(world, {.replicas = 2, .outer = {.every = 3}});
                       model.add(layer, UnitOptions{.name = "expert", .apart = Axis::replicate});
                       model.finalize(AdamW{});
                     });
  toy::check_failure("two parameters have the name \"expert.1.weight\"", 2, [&](World& world) {
    Layer expert(2, 2, rows), other(2, 2, rows);
    FullyShard model(world, on_mesh(2));
    model.add(expert, UnitOptions{.name = "expert", .apart = Axis::replicate});
    model.add(other, "expert.1");
    model.finalize(AdamW{});
  });
}

}  // namespace experts_test
