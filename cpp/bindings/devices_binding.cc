// The RDMA devices of this host as plain dictionaries, and the choice among them.
#include <pybind11/stl.h>

#include "bindings/support.h"
#include "fabric/devices.h"

namespace mxrdma::bindings {
namespace {

using fabric::DeviceInfo;
using fabric::DeviceTable;
using fabric::DeviceWish;
using fabric::PortInfo;
using fabric::Rail;

py::dict rail_dict(const Rail& rail) {
  py::dict made;
  made["device"] = rail.device;
  made["port"] = static_cast<int>(rail.port);
  made["gid_index"] = rail.gid.index;
  made["gid"] = rail.gid.text();
  made["type"] = fabric::gid_type_name(rail.gid.type);
  made["interface"] = rail.gid.interface;
  made["mtu"] = rail.mtu;
  made["rate"] = rail.rate;
  made["lid"] = rail.lid;
  made["why"] = rail.why;
  made["text"] = rail.text();
  return made;
}

py::dict port_dict(const DeviceInfo& device, const PortInfo& port, const DeviceWish& wish) {
  py::dict made;
  made["number"] = static_cast<int>(port.number);
  made["state"] = port.state;
  made["active"] = port.active();
  made["physical_state"] = port.physical_state;
  made["link_layer"] = port.link_layer;
  made["rate"] = port.rate;
  made["lid"] = port.lid;
  made["active_mtu"] = port.active_mtu;
  made["max_mtu"] = port.max_mtu;
  made["interfaces"] = port.interfaces;
  made["addresses"] = port.addresses;
  py::list gids;
  for (const fabric::GidEntry& entry : port.gids) {
    py::dict gid;
    gid["index"] = entry.index;
    gid["gid"] = entry.text();
    gid["raw"] = py::bytes(reinterpret_cast<const char*>(entry.raw.data()), entry.raw.size());
    gid["type"] = fabric::gid_type_name(entry.type);
    gid["interface"] = entry.interface;
    gids.append(gid);
  }
  made["gids"] = gids;
  const Result<Rail> choice = fabric::choose_gid(device, port, wish.address, wish.gid_index);
  made["choice"] = choice.is_ok() ? py::object(rail_dict(choice.value())) : py::none();
  made["choice_problem"] = choice.is_ok() ? "" : choice.status().message();
  return made;
}

py::dict device_dict(const DeviceInfo& device, const DeviceWish& wish) {
  py::dict made;
  made["name"] = device.name;
  made["state"] = fabric::usability_name(device.usability);
  made["usable"] = device.usable();
  made["problem"] = device.problem;
  made["mend"] = device.mend;
  made["firmware"] = device.firmware;
  made["guid"] = device.guid;
  made["board"] = device.board;
  made["driver"] = device.driver;
  made["transport"] = device.transport;
  made["device_file"] = device.device_file;
  made["numa_node"] = device.numa_node;
  py::dict limits;
  limits["queue_pairs"] = device.max_queue_pairs;
  limits["work_requests"] = device.max_work_requests;
  limits["gather"] = device.max_gather;
  limits["completions"] = device.max_completions;
  limits["shared_receives"] = device.max_shared_receives;
  limits["regions"] = device.max_regions;
  limits["region_bytes"] = device.max_region_bytes;
  made["limits"] = limits;
  py::list ports;
  for (const PortInfo& port : device.ports) ports.append(port_dict(device, port, wish));
  made["ports"] = ports;
  return made;
}

py::dict device_report(const std::string& address, const std::string& devices,
                       const std::string& gid_index) {
  const DeviceWish wish{address, devices, gid_index};
  const DeviceTable table = without_gil([] { return fabric::device_table(); });
  py::dict made;
  made["library_problem"] = table.library_problem;
  made["cm_problem"] = table.cm_problem;
  made["fork_support"] = table.fork_support;
  py::list list;
  for (const DeviceInfo& device : table.devices) list.append(device_dict(device, wish));
  made["devices"] = list;
  const Result<std::vector<Rail>> chosen = fabric::choose_rails(table, wish);
  py::list rails;
  if (chosen.is_ok())
    for (const Rail& rail : chosen.value()) rails.append(rail_dict(rail));
  made["rails"] = rails;
  made["rails_problem"] = chosen.is_ok() ? "" : chosen.status().message();
  return made;
}

}  // namespace

void bind_devices(py::module_& module) {
  module.def("device_report", &device_report, py::arg("address"), py::arg("devices"),
             py::arg("gid_index"));
}

}  // namespace mxrdma::bindings
