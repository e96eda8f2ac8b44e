// One host collective for all parameters.
#include "shard/gradient_norms.hpp"

#include <cmath>
#include <cstring>

#include "shard/host_pieces.hpp"
#include "tessera/kernels/norm.hpp"

namespace tessera {

namespace {

std::vector<GradientNorm> trained_parameters(const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units) {
  std::vector<GradientNorm> result;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t p = 0; p < plan.layouts[u].parameters(); ++p) {
      if (plan.layouts[u].part(p) == plan::Part::trained) result.push_back({units[u]->parameters()[p], 0.0});
    }
  }
  return result;
}

}  // namespace

std::vector<GradientNorm> gradient_norms(World& world, const plan::Plan& plan,
                                         std::span<const std::unique_ptr<Unit>> units, Executor& executor) {
  executor.require_between_steps("gradient_norms()");
  std::vector<GradientNorm> result = trained_parameters(plan, units);
  std::vector<double> mine(result.size(), 0.0);
  Stream host(Device::cpu(), {.name = "gradient norms", .mode = StreamMode::immediate});
  std::size_t next = 0;  // pieces come in the order of the parameters
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!plan.trains(u)) continue;
    const HostPieces here(executor.compute(), executor.pieces(u, plan.unit_buffers[u].gradient));
    for (const ParameterPiece& piece : here.pieces()) {
      while (result[next].parameter != piece.parameter) ++next;
      kernels::sum_of_squares(host, piece.values.data(), piece.values.size(), &mine[next]);
    }
  }
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span<const double>(mine)), "gradient norms");
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world.size()); ++rank) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      double squares = 0.0;
      std::memcpy(&squares, all.data() + (rank * result.size() + i) * sizeof(double), sizeof(double));
      result[i].norm += squares;
    }
  }
  const double scale = static_cast<double>(executor.step_scalars().applied_loss_scale);
  for (GradientNorm& entry : result) entry.norm = std::sqrt(entry.norm) / scale;
  return result;
}

}  // namespace tessera
