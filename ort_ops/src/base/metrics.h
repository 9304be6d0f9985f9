// Named counters of every node of a session, and of the parts of a `Fused` node.
//
// A metric is a sum since the session was made or since the last reset. Adding is relaxed: counters
// order nothing.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace tamiz {

struct MetricSpec {
  const char* name;
  const char* unit;
  const char* doc;
};

class Counter {
 public:
  void add(double amount) {
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + amount, std::memory_order_relaxed)) {
    }
  }
  void reset() { sum_.store(0, std::memory_order_relaxed); }
  double read() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> sum_{0};
};

/// Op → metric → sum; the op of what a whole node counts is "".
using OpSums = std::map<std::string, std::map<std::string, double>>;

/// The counters of one node and of its parts by name. Findable as (session, node or part) while it
/// lives.
class TAMIZ_API NodeMetrics {
 public:
  /// `session` is the tag of the session's options; empty: the counters cannot be read.
  NodeMetrics(std::string session, std::string node);
  ~NodeMetrics();
  NodeMetrics(const NodeMetrics&) = delete;
  NodeMetrics& operator=(const NodeMetrics&) = delete;

  /// The counter of that name of an op in a part of the node, or in the node where `part` is empty;
  /// made at the first call. Only while the node is built.
  Counter& counter(const std::string& part, const std::string& op, const std::string& name) {
    return counters_[part.empty() ? node_ : part][op][name];
  }

 private:
  friend std::map<std::string, OpSums> read_metrics(const std::string&);
  friend void reset_metrics(const std::string&);

  std::string session_;
  std::string node_;
  std::map<std::string, std::map<std::string, std::map<std::string, Counter>>> counters_;
};

/// What a stage sees: the counters of its op, in the order in which the op declares them. Stages of
/// the same op in one part of a `Fused` node add to the same counters.
class Metrics {
 public:
  Metrics(const std::string& op, const std::vector<MetricSpec>& declared, NodeMetrics& node,
          const std::string& part);
  void add(size_t metric, double amount) { counters_[metric]->add(amount); }

 private:
  std::vector<Counter*> counters_;
};

/// Node or part → op → metric → sum, of one session. What has the same name adds up.
TAMIZ_API std::map<std::string, OpSums> read_metrics(const std::string& session);
TAMIZ_API void reset_metrics(const std::string& session);

}  // namespace tamiz
