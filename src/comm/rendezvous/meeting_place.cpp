// Variables of torchrun and SLURM that say where.
#include "comm/rendezvous/meeting_place.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr int most_port = 65'535;
constexpr int torch_port = 29'500;  // torchrun's own default
// What SLURM's numbers are mapped to: outside of the ports that systems hand out.
constexpr int first_slurm_port = 20'000;
constexpr int slurm_ports = 10'000;
constexpr std::size_t least_token = 16;

std::optional<std::string> text_in(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::optional<int> number_in(const Environment& environment, const char* name, int least, int most) {
  const std::optional<std::string> text = text_in(environment, name);
  if (!text) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc() && end == text->data() + text->size() && number >= least && number <= most) return number;
  throw UsageError(
      fmt::format("the environment's {} is \"{}\", which is no number from {} to {}", name, *text, least, most));
}

std::string host_of(const Environment& environment) {
  if (auto host = text_in(environment, "MASTER_ADDR")) return *host;
  for (const char* const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = text_in(environment, name)) return first_of_nodes(*list);
  }
  throw UsageError("the environment does not say where the ranks meet: set MASTER_ADDR to the name of rank 0's host");
}

int slurm_port(const Environment& environment) {
  constexpr int any = 1 << 30;
  const std::optional<int> job = number_in(environment, "SLURM_JOB_ID", 0, any);
  if (!job)
    throw UsageError("the environment does not say where the ranks meet: set MASTER_PORT to a port that is free");
  const int step = number_in(environment, "SLURM_STEP_ID", 0, any).value_or(0);
  return first_slurm_port + static_cast<int>((static_cast<long long>(*job) * 7 + step) % slurm_ports);
}

int port_of(const Environment& environment, const Start& start) {
  if (const auto port = number_in(environment, "TESSERA_PORT", 1, most_port)) return *port;
  const std::optional<int> port = number_in(environment, "MASTER_PORT", 1, most_port - 1);
  if (!port && start.launcher == Launcher::slurm) return slurm_port(environment);
  const bool taken = text_in(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return port.value_or(torch_port) + (taken ? 1 : 0);
}

std::string token_of(const Environment& environment) {
  const std::string token = text_in(environment, "TESSERA_TOKEN").value_or("");
  if (!token.empty() && token.size() < least_token) {
    throw UsageError(fmt::format("TESSERA_TOKEN has {} characters, which can be guessed: use at least {}, at random",
                                 token.size(), least_token));
  }
  return token;
}

}  // namespace

std::string first_of_nodes(const std::string& list) {
  const std::string first = list.substr(0, list.find_first_of(",["));
  if (first.size() == list.size() || list[first.size()] == ',') return first;
  const std::string numbers = list.substr(first.size() + 1);
  return first + numbers.substr(0, numbers.find_first_of("-,]"));
}

MeetingPlace meeting_place(const Environment& environment, const Start& start) {
  const char* const local_rank = start.launcher == Launcher::slurm ? "SLURM_LOCALID" : "LOCAL_RANK";
  return {.endpoint = {.host = host_of(environment), .port = static_cast<std::uint16_t>(port_of(environment, start))},
          .token = token_of(environment),
          .local_rank = number_in(environment, local_rank, 0, 1 << 20).value_or(0)};
}

}  // namespace tessera::comm
