-- The health of a KafkaConnection, a GroupPolicy, a GroupRestore or a GroupKeep for Argo CD; docs/gitops.md says how to install it.
-- It follows what the conditions say, in the order of kstatus; messages are the operator's own.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function health(state, kind)
  local found = conditions[kind]
  if found == nil then
    return {status = state, message = "waits for the operator"}
  end
  return {status = state, message = found.reason .. ": " .. (found.message or "")}
end

-- A new object says observedGeneration -1, an edited one that of the former spec.
if status.observedGeneration ~= obj.metadata.generation or conditions.Ready == nil then
  return {status = "Progressing", message = "waits for the operator to look at it"}
end
-- Only a user can help: by an edit, a restore or a new object.
if is("Stalled", "True") then
  return health("Degraded", "Stalled")
end
if is("Ready", "False") then
  return health("Progressing", "Ready")
end
if obj.kind == "GroupPolicy" and obj.spec.suspend then
  return health("Suspended", "Ready")
end
return health("Healthy", "Ready")
