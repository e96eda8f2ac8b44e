// The other strategy's figures need no run: its plan is compiled and added up.
#include "common/memory_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"

namespace examples {

namespace {

namespace plan = tessera::plan;
namespace probe = tessera::probe;
using tessera::Bytes;
using tessera::Strategy;

Strategy other_than(Strategy strategy) { return strategy == Strategy::fsdp ? Strategy::ddp : Strategy::fsdp; }

plan::MemoryReport plan_of(const tessera::FullyShard& model, Strategy strategy) {
  const plan::Plan& ran = model.plan();
  if (strategy == ran.options.strategy) return plan::memory(ran);
  plan::CompileInput input{
      .units = ran.units, .program = ran.program, .options = ran.options, .optimizer_states = ran.optimizer_states};
  input.options.strategy = strategy;
  input.options.accumulation = model.options().accumulation;  // as it was asked for: a default is the strategy's own
  return plan::memory(plan::compile(input));
}

struct Row {
  std::string_view name;
  Bytes fsdp;
  Bytes ddp;
  std::optional<Bytes> measured;  // of the strategy that ran
};

std::string shown(std::optional<Bytes> bytes) { return bytes ? to_string(*bytes) : "-"; }

std::string shown_ratio(Bytes fsdp, Bytes ddp) {
  if (ddp == Bytes(0)) return "-";
  return fmt::format("{:.2f}", static_cast<double>(fsdp.count()) / static_cast<double>(ddp.count()));
}

class Table {
 public:
  explicit Table(Strategy ran) : ran_(ran) {
    const std::string measured = fmt::format("{} measured", to_string(ran));
    text_ = line("Bytes per rank", {"fsdp planned", measured, "ddp planned", "fsdp/ddp"});
  }

  void add(const Row& row) {
    text_ += line(row.name, {shown(row.fsdp), shown(row.measured), shown(row.ddp), shown_ratio(row.fsdp, row.ddp)});
  }
  void add_unplanned(std::string_view name, Bytes size) { text_ += line(name, {"-", to_string(size), "-", "-"}); }

  const std::string& text() const { return text_; }

 private:
  struct Cells {
    std::string fsdp, measured, ddp, ratio;
  };

  // The measured column stands beside its own strategy's plan.
  std::string line(std::string_view name, const Cells& cells) const {
    const bool fsdp_ran = ran_ == Strategy::fsdp;
    return fmt::format("{:<18}{:>15}{:>15}{:>15}{:>10}\n", name, cells.fsdp, fsdp_ran ? cells.measured : cells.ddp,
                       fsdp_ran ? cells.ddp : cells.measured, cells.ratio);
  }

  Strategy ran_;
  std::string text_;
};

std::optional<Bytes> largest_measured(std::span<const probe::RankMemory> ranks,
                                      const probe::Figure& (*figure)(const probe::RankMemory&, std::size_t),
                                      std::size_t index) {
  Bytes largest;
  for (const probe::RankMemory& rank : ranks) {
    if (!rank.measurable) return std::nullopt;
    largest = std::max(largest, figure(rank, index).measured);
  }
  return largest;
}

const probe::Figure& category_figure(const probe::RankMemory& rank, std::size_t index) {
  return rank.categories[index];
}
const probe::Figure& peak_figure(const probe::RankMemory& rank, std::size_t) { return rank.peak; }

}  // namespace

std::string memory_table(const tessera::FullyShard& model, std::span<const probe::RankMemory> ranks) {
  const Strategy ran = model.plan().options.strategy;
  const plan::MemoryReport reports[] = {plan_of(model, ran), plan_of(model, other_than(ran))};
  const plan::MemoryReport& fsdp = reports[ran == Strategy::fsdp ? 0 : 1];
  const plan::MemoryReport& ddp = reports[ran == Strategy::fsdp ? 1 : 0];
  Table table(ran);
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    const Bytes sizes[] = {fsdp.categories[index].size, ddp.categories[index].size};
    if (sizes[0] == Bytes(0) && sizes[1] == Bytes(0)) continue;
    table.add({.name = to_string(static_cast<plan::Category>(index)),
               .fsdp = sizes[0],
               .ddp = sizes[1],
               .measured = largest_measured(ranks, category_figure, index)});
  }
  table.add({.name = "all of the above",
             .fsdp = fsdp.peak,
             .ddp = ddp.peak,
             .measured = largest_measured(ranks, peak_figure, 0)});
  table.add({.name = "in use at once", .fsdp = fsdp.live, .ddp = ddp.live, .measured = std::nullopt});
  const probe::RankMemory& first = ranks.front();
  for (std::size_t index = 0; index < first.unplanned_count; ++index) {
    table.add_unplanned(first.unplanned[index].name.data(), first.unplanned[index].size);
  }
  return table.text();
}

}  // namespace examples
