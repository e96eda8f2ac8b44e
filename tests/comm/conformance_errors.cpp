// Conformance: ranks that do not come, disagree, leave, or fail. Every rank gets an error that says so; nobody hangs.
#include <array>
#include <initializer_list>
#include <span>
#include <thread>

#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

using std::chrono::steady_clock;

std::string aborted_text(Communicator& communicator) {
  Stream stream = queued_stream("after the failure");
  return text_of_expected<AbortedError>([&] {
    communicator.barrier(stream, "after the failure");
    stream.synchronize();
  });
}

// Which rank the error is attributed to differs between backends; the rest of it must not.
void check_aborted_world(const World& world, Communicator& communicator, std::string_view cause) {
  require(world.aborted(), "a failed collective aborts the world");
  require_contains(text_of_expected<AbortedError>([&] { world.throw_if_aborted(); }), cause);
  require_contains(aborted_text(communicator), cause);
}

struct Disagreement {
  std::string_view text_of_first;  // what ranks 0 to size - 2 called
  std::string_view text_of_last;   // what the last rank called instead
};

// The last rank calls `last`, all others `first`, as the second collective of a communicator.
template <typename First, typename Last>
void check_disagreement(World& world, const Disagreement& expected, First&& first, Last&& last) {
  const auto communicator = world.make_communicator("reduce");
  Stream stream = queued_stream("reduce");
  communicator->barrier(stream, "agreed");
  const std::string text = text_of_expected<CommunicationError>([&] {
    if (is_last(world)) {
      last(*communicator, stream);
    } else {
      first(*communicator, stream);
    }
    stream.synchronize();
  });
  require_contains(text, "communicator reduce");
  require_contains(text, fmt::format("called #2 {}", expected.text_of_first));
  require_contains(text, fmt::format("rank {} called #2 {}", last_rank(world), expected.text_of_last));
  require_contains(text, world.size() == 2 ? "rank 0 called" : "ranks 0");
  check_aborted_world(world, *communicator, expected.text_of_last);
}

}  // namespace

void misuse_is_an_error_at_the_call(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  Stream immediate(Device::cpu(), {.name = "compute", .mode = StreamMode::immediate});
  Shared<float> data(static_cast<std::size_t>(world.size()) * 4);
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  const auto rejected = [](auto&& call) { return text_of_expected<UsageError>(call); };

  require_contains(rejected([&] { communicator->barrier(immediate, "start"); }), "compute");
  const std::string null_text =
      rejected([&] { communicator->all_gather(stream, {.shard = Bytes(4), .label = "blocks.3"}); });
  require_contains(null_text, "blocks.3");
  require_contains(null_text, "gather");
  rejected([&] { communicator->reduce_scatter(stream, {.result = data.data(), .shard_elements = 1, .label = "x"}); });
  rejected([&] { communicator->reduce_scatter(stream, {.data = bytes, .shard_elements = 1, .label = "x"}); });
  rejected([&] { communicator->all_reduce(stream, {.elements = 1, .label = "x"}); });
  rejected([&] { communicator->broadcast(stream, {.size = Bytes(1), .label = "x"}); });
  rejected(
      [&] { communicator->all_reduce(stream, {.data = data.data(), .elements = 1, .divisor = 0.0f, .label = "x"}); });
  const ReduceScatter overlapping = {
      .data = bytes, .wire = DType::bf16, .result = data.data() + 1, .shard_elements = 4, .label = "x"};
  rejected([&] { communicator->reduce_scatter(stream, overlapping); });
  for (const int root : {-1, world.size()}) {
    const Broadcast operation = {.data = bytes, .size = Bytes(4), .root = root, .label = "x"};
    require_contains(rejected([&] { communicator->broadcast(stream, operation); }), fmt::format("rank {}", root));
  }
  for (const int place : {-1, world.size()}) {
    const Transfer transfer = {.from = 0, .to = place, .size = Bytes(1)};
    const Redistribute operation = {.data = bytes, .transfers = std::span(&transfer, 1), .label = "x"};
    require_contains(rejected([&] { communicator->redistribute(stream, operation); }), fmt::format("rank {}", place));
  }
  const Transfer byte = {.size = Bytes(1)};
  rejected([&] { communicator->redistribute(stream, {.transfers = std::span(&byte, 1), .label = "x"}); });
  communicator->barrier(stream, "a rejected call leaves no trace");
  stream.synchronize();
}

void misuse_in_a_group_names_the_segment(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  Shared<float> data(static_cast<std::size_t>(world.size()) * 8);
  Shared<float> result(8);
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  auto* const other_half = bytes + data.size() * sizeof(float) / 2;
  const auto rejected_gather = [&](std::initializer_list<AllGather> segments) {
    return text_of_expected<UsageError>(
        [&] { communicator->all_gather(stream, std::span<const AllGather>(segments)); });
  };
  const auto rejected_sum = [&](std::initializer_list<ReduceScatter> segments) {
    return text_of_expected<UsageError>(
        [&] { communicator->reduce_scatter(stream, std::span<const ReduceScatter>(segments)); });
  };
  const AllGather whole = {.data = bytes, .shard = Bytes(32), .label = "whole"};
  const ReduceScatter sum = {.data = bytes, .result = result.data(), .shard_elements = 4, .label = "sum"};
  require_contains(rejected_gather({}), "a segment");
  require_contains(rejected_sum({}), "a segment");
  require_contains(rejected_gather({whole, {.shard = Bytes(4), .label = "null"}}), "all-gather \"null\"");
  const std::string gathers = rejected_gather({whole, {.data = other_half, .shard = Bytes(4), .label = "inner"}});
  require_contains(gathers, "all-gather \"whole\"");
  require_contains(gathers, "\"inner\"");
  const ReduceScatter by_zero = {
      .data = other_half, .result = result.data() + 4, .shard_elements = 4, .divisor = 0.0f, .label = "by zero"};
  require_contains(rejected_sum({sum, by_zero}), "reduce-scatter \"by zero\"");
  ReduceScatter same_result = sum;
  same_result.label = "same result";
  require_contains(rejected_sum({sum, same_result}), "\"same result\"");
  const ReduceScatter into_data = {
      .data = other_half, .result = data.data(), .shard_elements = 4, .label = "into data"};
  require_contains(rejected_sum({sum, into_data}), "reduce-scatter \"into data\"");
  communicator->barrier(stream, "a rejected call leaves no trace");
  stream.synchronize();
}

void rank_that_never_comes_is_named(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  communicator->barrier(stream, "start");
  stream.synchronize();
  const std::string missing = fmt::format("rank {}", last_rank(world));
  if (is_last(world)) {
    wait_for_abort(world);
    require_contains(aborted_text(*communicator), missing);
    return;
  }
  Shared<std::byte> data(static_cast<std::size_t>(world.size()));
  const auto start = steady_clock::now();
  const std::string text = text_of_expected<CommunicationError>([&] {
    communicator->all_gather(stream, {.data = data.data(), .shard = Bytes(1), .label = "blocks.3"});
    stream.synchronize();
  });
  const double waited = seconds_since(start);
  require(waited < at_once_seconds, "the error came after {} s", waited);
  const std::string deadline = fmt::format("{:.3g} s", std::chrono::duration<double>(world.timeout()).count());
  for (const std::string_view part : {"all-gather \"blocks.3\"", "communicator gather", "#2", deadline.c_str()}) {
    require_contains(text, part);
  }
  require_contains(text, fmt::format("for {}", missing));
  require_contains(text, world.size() == 2 ? "rank 0 waited" : "ranks 0");
  check_aborted_world(world, *communicator, "all-gather \"blocks.3\"");
}

void rank_that_never_makes_a_communicator_is_named(World& world) {
  if (is_last(world)) return wait_for_abort(world);
  const std::string text = text_of_expected<CommunicationError>([&] { world.make_communicator("gather"); });
  require_contains(text, "make_communicator \"gather\"");
  require_contains(text, fmt::format("for rank {}", last_rank(world)));
}

// Rank 0 works for twice the timeout and says so. Rank 1 waits for it in one communicator, the others in another one
// for both. Then the last rank stands still while rank 0 works on, and is the only one that is named.
void rank_that_makes_progress_is_waited_for(World& world) {
  if (world.size() > 3 && world.size() != 5) return;
  const auto files = world.make_communicator("files", {.host_memory = true});
  const auto end = world.make_communicator("end", {.host_memory = true});
  Stream files_stream(Device::cpu(), {.name = "files"});
  Stream end_stream(Device::cpu(), {.name = "end"});
  const auto work = [&](auto&& goes_on) {
    while (goes_on()) {
      world.note_progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  const auto start = steady_clock::now();
  if (world.rank() == 0) work([&] { return steady_clock::now() - start < 2 * world.timeout() && !world.aborted(); });
  files->barrier(files_stream, "files are there");
  if (world.rank() == 1) files_stream.synchronize();
  end->barrier(end_stream, "end");
  end_stream.synchronize();
  files_stream.synchronize();
  if (world.size() < 3) return;
  if (is_last(world)) return wait_for_abort(world);
  if (world.rank() == 0) return work([&] { return !world.aborted(); });
  const std::string text = text_of_expected<CommunicationError>([&] {
    end->barrier(end_stream, "blocks.3");
    end_stream.synchronize();
  });
  require_contains(text, fmt::format("for rank {}, which did not come", last_rank(world)));
}

// Rank 0 saves alone, say, while the others open a window.
void rank_that_waits_elsewhere_is_told_with_where(World& world) {
  const auto files = world.make_communicator("files", {.host_memory = true});
  const auto gather = world.make_communicator("gather", {.host_memory = true});
  Stream stream(Device::cpu(), {.name = "alone"});
  const bool alone = world.rank() == 0;
  const std::string text = text_of_expected<Error>([&] {
    (alone ? files : gather)->barrier(stream, alone ? "checkpoint: begin" : "blocks.3");
    stream.synchronize();
  });
  require_contains(text, "barrier \"checkpoint: begin\" (communicator files");
  require_contains(text, "barrier \"blocks.3\" (communicator gather");
}

// A rank that reaches the collective only after another one has seen this gets the same cause as an AbortedError.
void rank_that_has_left_is_named_at_once(World& world) {
  const auto communicator = world.make_communicator("gather");
  if (is_last(world)) return;
  Stream stream = queued_stream("gather");
  const auto start = steady_clock::now();
  const std::string text = text_of_expected<Error>([&] {
    communicator->barrier(stream, "blocks.3");
    stream.synchronize();
  });
  require(seconds_since(start) < at_once_seconds, "the error does not wait for the deadline");
  require_contains(text, fmt::format("rank {} has left", last_rank(world)));
  require_contains(text, "barrier \"blocks.3\" (communicator gather, #1)");
}

void disagreement_about_the_kind_names_both(World& world) {
  Shared<float> data(static_cast<std::size_t>(world.size()));
  check_disagreement(
      world, {"all-reduce \"blocks.3\"", "barrier \"blocks.3\""},
      [&](Communicator& communicator, Stream& stream) {
        communicator.all_reduce(stream, {.data = data.data(), .elements = 1, .label = "blocks.3"});
      },
      [](Communicator& communicator, Stream& stream) { communicator.barrier(stream, "blocks.3"); });
}

void disagreement_about_the_label_names_both(World& world) {
  check_disagreement(
      world, {"barrier \"blocks.3\"", "barrier \"blocks.4\""},
      [](Communicator& communicator, Stream& stream) { communicator.barrier(stream, "blocks.3"); },
      [](Communicator& communicator, Stream& stream) { communicator.barrier(stream, "blocks.4"); });
}

void disagreement_about_the_bytes_names_both(World& world) {
  Shared<std::byte> data(8 * static_cast<std::size_t>(world.size()));
  const auto gather = [&](std::uint64_t shard_bytes) {
    return [&data, shard_bytes](Communicator& communicator, Stream& stream) {
      communicator.all_gather(stream, {.data = data.data(), .shard = Bytes(shard_bytes), .label = "blocks.3"});
    };
  };
  check_disagreement(world, {"all-gather \"blocks.3\" of 8 bytes", "all-gather \"blocks.3\" of 4 bytes"}, gather(8),
                     gather(4));
}

void disagreement_about_the_dtype_names_both(World& world) {
  Shared<std::byte> data(8 * static_cast<std::size_t>(world.size()));
  Shared<float> result(4);
  const auto sum = [&](DType wire) {
    return [&data, &result, wire](Communicator& communicator, Stream& stream) {
      communicator.reduce_scatter(
          stream,
          {.data = data.data(), .wire = wire, .result = result.data(), .shard_elements = 4, .label = "blocks.3"});
    };
  };
  check_disagreement(world,
                     {"reduce-scatter \"blocks.3\" of 8 bytes bf16", "reduce-scatter \"blocks.3\" of 8 bytes fp16"},
                     sum(DType::bf16), sum(DType::fp16));
}

void disagreement_about_the_divisor_names_both(World& world) {
  Shared<float> data(3);
  const auto sum = [&](float divisor) {
    return [&data, divisor](Communicator& communicator, Stream& stream) {
      communicator.all_reduce(stream, {.data = data.data(), .elements = 3, .divisor = divisor, .label = "loss"});
    };
  };
  check_disagreement(world,
                     {"all-reduce \"loss\" of 12 bytes fp32", "all-reduce \"loss\" of 12 bytes fp32, divided by 5"},
                     sum(1.0f), sum(5.0f));
}

void disagreement_about_the_root_names_both(World& world) {
  Shared<std::byte> data(4);
  const auto broadcast = [&](int root) {
    return [&data, root](Communicator& communicator, Stream& stream) {
      communicator.broadcast(stream, {.data = data.data(), .size = Bytes(4), .root = root, .label = "weights"});
    };
  };
  check_disagreement(world,
                     {"broadcast \"weights\" of 4 bytes from rank 0", "broadcast \"weights\" of 4 bytes from rank 1"},
                     broadcast(0), broadcast(1));
}

// The first segments agree, so that only the second can tell; of each of its facts.
void disagreement_about_a_segment_names_both(World& world) {
  Shared<std::byte> data(32 * static_cast<std::size_t>(world.size()));
  Shared<float> results(16);
  const ReduceScatter first = {.data = data.data(), .result = results.data(), .shard_elements = 4, .label = "a"};
  const ReduceScatter second = {.data = data.data() + data.size() / 2,
                                .wire = DType::bf16,
                                .result = results.data() + 4,
                                .shard_elements = 4,
                                .label = "b"};
  const std::array<ReduceScatter, 2> group = {first, second};
  const auto check = [&](auto change, std::string_view text_of_last) {
    std::array<ReduceScatter, 2> changed = group;
    change(changed[1]);
    const auto sum = [](const std::array<ReduceScatter, 2>& segments) {
      return [&segments](Communicator& communicator, Stream& stream) {
        communicator.reduce_scatter(stream, std::span<const ReduceScatter>(segments));
      };
    };
    check_disagreement(world, {"reduce-scatter \"b\" (segment 2 of 2) of 8 bytes bf16", text_of_last}, sum(group),
                       sum(changed));
  };
  // A disagreement ends the world: one fact per run of the property, by the number of ranks.
  switch (world.size() % 4) {
    case 0: return check([](ReduceScatter& s) { s.label = "c"; }, "reduce-scatter \"c\" (segment 2 of 2) of 8 bytes");
    case 1: return check([](ReduceScatter& s) { s.shard_elements = 3; }, "reduce-scatter \"b\" (segment 2 of 2) of 6");
    case 2:
      return check([](ReduceScatter& s) { s.wire = DType::fp16; },
                   "reduce-scatter \"b\" (segment 2 of 2) of 8 bytes fp16");
    default:
      return check([](ReduceScatter& s) { s.divisor = 5.0f; },
                   "reduce-scatter \"b\" (segment 2 of 2) of 8 bytes bf16, divided by 5");
  }
}

void disagreement_about_the_number_of_segments_names_both(World& world) {
  Shared<std::byte> data(8 * static_cast<std::size_t>(world.size()));
  const AllGather group[] = {{.data = data.data(), .shard = Bytes(4), .label = "a"},
                             {.data = data.data() + data.size() / 2, .shard = Bytes(4), .label = "b"}};
  const auto gather = [&](std::size_t segments) {
    return [&group, segments](Communicator& communicator, Stream& stream) {
      communicator.all_gather(stream, std::span(group).first(segments));
    };
  };
  check_disagreement(world, {"all-gather \"b\" (segment 2 of 2) of 4 bytes", "all-gather \"a\" of 4 bytes"}, gather(2),
                     gather(1));
}

void disagreement_about_a_communicators_name_names_both(World& world) {
  const std::string text =
      text_of_expected<CommunicationError>([&] { world.make_communicator(is_last(world) ? "reduce" : "gather"); });
  require_contains(text, "called make_communicator \"gather\"");
  require_contains(text, fmt::format("rank {} called make_communicator \"reduce\"", last_rank(world)));
}

void abort_reaches_every_wait_with_the_first_cause(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  world.barrier("start");
  const auto start = steady_clock::now();
  if (is_last(world)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    world.abort("disk full");
    world.abort("a later cause");
  }
  // Waits of three kinds: on a stream, in a convenience, for a new communicator.
  const std::string text = text_of_expected<AbortedError>([&] {
    if (world.rank() % 3 == 1) world.barrier("end");
    if (world.rank() % 3 == 2) world.make_communicator("another");
    communicator->barrier(stream, "end");
    stream.synchronize();
  });
  require(seconds_since(start) < at_once_seconds, "the error does not wait for the deadline");
  require_contains(text, fmt::format("rank {}", last_rank(world)));
  require_contains(text, "disk full");
  check_aborted_world(world, *communicator, "disk full");
}

// Peers may be reading this rank's buffer when it learns of the failure: AddressSanitizer sees a buffer freed too
// early.
// A rank may learn of the failure while it still makes its communicator.
void memory_may_be_freed_right_after_a_failure(World& world) {
  constexpr std::size_t shard_bytes = 400'003;
  const auto start = steady_clock::now();
  std::thread aborter;
  text_of_expected<AbortedError>([&] {
    const auto communicator = world.make_communicator("gather");
    if (world.rank() == 0) {
      aborter = std::thread([&world] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        world.abort("enough");
      });
    }
    while (seconds_since(start) < at_once_seconds) {
      Shared<std::byte> data(shard_bytes * static_cast<std::size_t>(world.size()));
      Stream stream = queued_stream("gather");
      communicator->all_gather(stream, {.data = data.data(), .shard = Bytes(shard_bytes), .label = "blocks.3"});
      stream.synchronize();
    }
  });
  if (aborter.joinable()) aborter.join();
}

}  // namespace tessera::conformance
