// The command line of a subcommand of `tessera cost`: options that take numbers with units, each at most once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cost/quantity.hpp"
#include "tessera/base/dtype.hpp"

// CLI11 itself stays in the sources: its header takes ten seconds to compile.
namespace CLI {
class App;
}  // namespace CLI

namespace tools {

struct CostOption {
  std::string name;  // "--bytes"
  std::string type;  // in the help page: "SIZE"
  std::string what;  // and there too, with the default
  bool required = false;
};

// Targets must outlive parse(), and keep their value where an option is not given. Every refusal is a
// tessera::UsageError that names the option.
class CostLine {
 public:
  CostLine(const std::string& subcommand, const std::string& description, const std::string& footer);
  ~CostLine();
  CostLine(const CostLine&) = delete;
  CostLine& operator=(const CostLine&) = delete;

  void number(const CostOption& option, double& target, const cost::Quantity& quantity);
  void number(const CostOption& option, std::optional<double>& target, const cost::Quantity& quantity);
  void whole(const CostOption& option, std::uint64_t& target, const cost::Quantity& quantity);
  void list(const CostOption& option, std::vector<double>& target, const cost::Quantity& quantity);
  // Each number larger than the one before it.
  void rising(const CostOption& option, std::vector<std::uint64_t>& target, const cost::Quantity& quantity);

  void dtype(tessera::DType& target);
  void json(bool& target);
  void plot(std::optional<std::string>& target);

  // False when only the help page was asked for, and printed.
  bool parse(const std::vector<std::string>& arguments);

 private:
  template <typename Take>
  void add(const CostOption& option, Take take);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace tools
