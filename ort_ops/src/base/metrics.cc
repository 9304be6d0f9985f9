#include "base/metrics.h"

#include <mutex>
#include <set>
#include <utility>

namespace tamiz {
namespace {

std::mutex mutex;

std::map<std::string, std::set<NodeMetrics*>>& sessions() {
  // Never destroyed: a host may drop its sessions after our static objects are gone.
  static auto* all = new std::map<std::string, std::set<NodeMetrics*>>;
  return *all;
}

}  // namespace

NodeMetrics::NodeMetrics(std::string session, std::string node)
    : session_(std::move(session)), node_(std::move(node)) {
  if (session_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  sessions()[session_].insert(this);
}

NodeMetrics::~NodeMetrics() {
  if (session_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto session = sessions().find(session_);
  session->second.erase(this);
  if (session->second.empty()) sessions().erase(session);
}

Metrics::Metrics(const std::string& op, const std::vector<MetricSpec>& declared, NodeMetrics& node,
                 const std::string& part) {
  for (const MetricSpec& metric : declared) {
    counters_.push_back(&node.counter(part, op, metric.name));
  }
}

std::map<std::string, OpSums> read_metrics(const std::string& session) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::map<std::string, OpSums> result;
  const auto found = sessions().find(session);
  if (found == sessions().end()) return result;
  for (const NodeMetrics* node : found->second) {
    for (const auto& [part, ops] : node->counters_) {
      for (const auto& [op, counters] : ops) {
        for (const auto& [name, counter] : counters) result[part][op][name] += counter.read();
      }
    }
  }
  return result;
}

void reset_metrics(const std::string& session) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = sessions().find(session);
  if (found == sessions().end()) return;
  for (NodeMetrics* node : found->second) {
    for (auto& [part, ops] : node->counters_) {
      for (auto& [op, counters] : ops) {
        for (auto& [name, counter] : counters) counter.reset();
      }
    }
  }
}

}  // namespace tamiz
