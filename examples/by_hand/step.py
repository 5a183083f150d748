"""The engine by hand: one request under an adapter, step by step."""

from lorad import Engine
from lorad.demo.tenant import tenants

engine = Engine("smollm2")
for tenant in tenants():
    engine.load_adapter(tenant.name, str(tenant.path))
request = engine.add("Define: war", model="devil", max_tokens=24)
while engine.step():
    print(engine.plan_text(), request, sep="\n")
print(engine.dump(), request.text, sep="\n")
